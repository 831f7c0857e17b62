-- Steps a fixed window: the twin of mod.rs, in doubles that hold every integer below 2^53 exactly.
-- A bucket is what is spent, and begin and end of the period in which that counts; stored, three integers of eight bytes.

local EXACT = 9007199254740991
local HOUR = 3600000000
local floor, min = math.floor, math.min
local pack, unpack = struct.pack, struct.unpack

return {
  -- From the numbers after `at`, which are text: the limit, and either how long windows are and whether the first grant
  -- begins them, or the present period of a calendar and the end of the next one.
  new = function(numbers, at, now)
    local limit, kind = {capacity = tonumber(numbers[at + 1])}, tonumber(numbers[at + 2])
    if kind == 2 then
      limit.first, limit.last, limit.next = tonumber(numbers[at + 3]), tonumber(numbers[at + 4]), tonumber(numbers[at + 5])
      limit.outside = now < limit.first or now >= limit.last
    else
      local window = tonumber(numbers[at + 3])
      limit.first = kind == 1 and now or floor(now / window) * window
      limit.last = limit.first + window
      limit.next = limit.last + window
      limit.ahead = min(window, HOUR)
    end
    return limit
  end,

  -- Reads what is stored, as it is worth now; false for a value that cannot be that. Also returns whether it must be
  -- written although nothing is charged: otherwise its period would move on with every look at it.
  open = function(limit, value, now)
    if type(value) ~= 'string' or #value ~= 24 then return false end
    local spent, first, last = unpack('<I8I8I8', value)
    if spent > EXACT or last > EXACT or first >= last then return false end
    if first - now > (limit.ahead or HOUR) then return {spent, limit.first, limit.last}, true end
    if last > now then
      -- One that begins later is not capped: its end could come before its beginning.
      if first <= now and last > limit.next then return {spent, first, limit.next}, true end
      return {spent, first, last}
    end
    if limit.first > first then return {0, limit.first, limit.last} end
    return {spent, first, limit.last}
  end,

  full = function(limit, now)
    return {0, limit.first, limit.last}
  end,

  empty = function(limit, now)
    return {limit.capacity, limit.first, limit.last}
  end,

  -- How many times it could pay.
  most = function(limit, bucket, cost)
    return floor((limit.capacity - bucket[1]) / cost)
  end,

  charge = function(limit, bucket, cost)
    bucket[1] = bucket[1] + cost
  end,

  -- What to store, and until when: gateways whose time zones differ a little must find it after its end.
  close = function(limit, bucket)
    return pack('<I8I8I8', bucket[1], bucket[2], bucket[3]), bucket[3] + HOUR
  end,

  -- Undoes a charge, as long as its period runs.
  undo = function(limit, bucket, cost, charged)
    if charged < bucket[2] or charged >= bucket[3] or bucket[1] < cost then return false end
    bucket[1] = bucket[1] - cost
    return true
  end,

  give_back = function(value, amount)
    if type(value) ~= 'string' or #value ~= 24 then return false end
    local spent, first, last = unpack('<I8I8I8', value)
    if spent > EXACT or last > EXACT or first >= last then return false end
    return pack('<I8I8I8', math.max(spent - amount, 0), first, last)
  end,
}
