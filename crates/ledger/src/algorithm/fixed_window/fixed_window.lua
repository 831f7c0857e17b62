-- Steps a fixed window: the twin of mod.rs, in doubles that hold every integer below 2^53 exactly. A bucket is the
-- spent amount, and the beginning and end of the period in which it counts. It is stored as three integers of eight
-- bytes.

local HOUR = 3600000000

local function read(value)
  if #value ~= 24 then return false end
  local spent, first, last = struct.unpack('<I8I8I8', value)
  return spent < 2^53 and last < 2^53 and first < last and spent, first, last
end

return {
  -- Reads the limit. Then reads the length of windows and whether the first grant begins them (`by_grant`), or else a calendar's
  -- present period and the end of its next period. The kind of window also has the thresholds: shares in percent of a
  -- byte each.
  new = function(numbers, at, now)
    local capacity, kind, length, after = struct.unpack('<I8I8I8', numbers, at)
    local shares = false
    if kind > 2 then kind, shares = kind % 4, math.floor(kind / 4) end
    if kind == 2 then
      local first, last, next, after = struct.unpack('<I8I8I8', numbers, at + 16)
      local outside = now < first or now >= last
      return {capacity = capacity, first = first, last = last, next = next, ahead = HOUR, outside = outside, shares = shares}, after
    end
    local first = kind == 1 and now or math.floor(now / length) * length
    local last, ahead = first + length, math.min(length, HOUR)
    local limit = {capacity = capacity, first = first, last = last, next = last + length, ahead = ahead, outside = false}
    limit.shares, limit.length, limit.by_grant = shares, length, kind == 1
    return limit, after
  end,

  -- Returns the limit with the periods around another moment, which is at most a calendar period later.
  at = function(limit, moment)
    local first, last, next, length = limit.first, limit.last, limit.next, limit.length
    if length then
      first = limit.by_grant and moment or math.floor(moment / length) * length
      last, next = first + length, first + 2 * length
    elseif moment >= last then
      first, last = last, next
    end
    return {capacity = limit.capacity, first = first, last = last, next = next, ahead = limit.ahead}
  end,

  -- A corrected bucket must be written. Otherwise the period's end would move at every read.
  open = function(limit, value, now)
    local bucket = {0, limit.first, limit.last, limit = limit, found = value, changed = false}
    if not value then return bucket end
    local spent, first, last = read(value)
    if not spent then
      bucket[1], bucket.invalid = limit.capacity, true
    elseif first - now > limit.ahead then
      bucket[1], bucket.changed = spent, true
    elseif last > now then
      bucket[1], bucket[2], bucket[3] = spent, first, last
      -- A period that has not begun is not capped, because its end could come before its beginning.
      if first <= now and last > limit.next then bucket[3], bucket.changed = limit.next, true end
    elseif limit.first <= first then
      bucket[1], bucket[2] = spent, first
    end
    return bucket
  end,

  -- How many times the bucket can pay the cost.
  most = function(limit, bucket, cost)
    return math.floor((limit.capacity - bucket[1]) / cost)
  end,

  charge = function(limit, bucket, cost)
    bucket[1] = bucket[1] + cost
  end,

  -- Returns the value to store, and until when: gateways whose time zones differ a little must find it after its
  -- period.
  close = function(limit, bucket)
    return struct.pack('<I8I8I8', bucket[1], bucket[2], bucket[3]), bucket[3] + HOUR
  end,

  -- Undoes a charge, as long as its period runs.
  undo = function(limit, bucket, cost, charged)
    if charged < bucket[2] or charged >= bucket[3] or bucket[1] < cost then return false end
    bucket[1] = bucket[1] - cost
    return true
  end,

  give_back = function(value, amount)
    local spent, first, last = read(value)
    if not spent then return false end
    return struct.pack('<I8I8I8', math.max(spent - amount, 0), first, last)
  end,
}
