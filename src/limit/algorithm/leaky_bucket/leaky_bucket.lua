-- Steps a leaky bucket: the twin of mod.rs, in doubles that hold every integer below 2^53 exactly.
-- A bucket is what is taken of its places, and since when; stored, three integers of eight bytes, with their unit between
-- them. Only `most` differs from a token bucket: the gateway computes how long each request waits.

local EXACT = 9007199254740991
local MOST_AHEAD = 10000000
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local pack, unpack = struct.pack, struct.unpack

-- An amount in another bucket's units, in ours: rounded up, so that no place is forgotten.
local function convert(taken, from, unit)
  local thousandths = floor(taken / from)
  local rest = (taken - thousandths * from) * unit
  if rest <= EXACT then rest = ceil(rest / from) else rest = unit end
  return min(thousandths * unit + rest, EXACT)
end

return {
  -- From the numbers after `at`, which are text: the capacity, the units in a thousandth of a place, the units that leave
  -- each microsecond, and the most that may be ahead of a request: then it waits as long as it can.
  new = function(numbers, at)
    return {
      capacity = tonumber(numbers[at + 1]),
      unit = tonumber(numbers[at + 2]),
      refill = tonumber(numbers[at + 3]),
      reach = tonumber(numbers[at + 4]),
    }
  end,

  -- Reads what is stored, as it is worth now; false for a value that cannot be that. Also returns whether it must be
  -- written although nothing is charged: a moment too far ahead would otherwise be taken as now at every look.
  open = function(limit, value, now)
    if type(value) ~= 'string' or #value ~= 24 then return false end
    local taken, unit, since = unpack('<I8I8I8', value)
    if taken > EXACT or unit > EXACT or unit == 0 or since > EXACT then return false end
    if unit ~= limit.unit then taken = convert(taken, unit, limit.unit) end
    if since - now > MOST_AHEAD then return {taken, now}, true end
    if since < now then
      taken = taken - (now - since) * limit.refill
      if taken < 0 then taken = 0 end
      since = now
    end
    return {taken, since}
  end,

  full = function(limit, now)
    return {0, now}
  end,

  empty = function(limit, now)
    return {limit.capacity, now}
  end,

  -- How many times it could pay: as long as there is room, and as what is ahead of the last is not too much. A cost below 1
  -- waits in a place of its own, too.
  most = function(limit, bucket, cost)
    local price, one = cost * limit.unit, 1000 * limit.unit
    local ahead = min(limit.capacity - max(price, one), limit.reach)
    return floor((ahead - bucket[1]) / price) + 1
  end,

  charge = function(limit, bucket, cost)
    bucket[1] = bucket[1] + cost * limit.unit
  end,

  -- What to store, and until when: then every place is free again.
  close = function(limit, bucket)
    local taken, since = bucket[1], bucket[2]
    return pack('<I8I8I8', taken, limit.unit, since), since + ceil(taken / limit.refill)
  end,

  -- A product that is not exact is larger than anything that is taken.
  give_back = function(value, amount)
    if type(value) ~= 'string' or #value ~= 24 then return false end
    local taken, unit, since = unpack('<I8I8I8', value)
    if taken > EXACT or unit > EXACT or unit == 0 or since > EXACT then return false end
    return pack('<I8I8I8', max(taken - amount * unit, 0), unit, since)
  end,
}
