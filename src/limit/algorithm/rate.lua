-- What token_bucket and leaky_bucket share: a bucket that empties at a rate, in doubles that hold every integer below 2^53
-- exactly. It is what is spent, and since when; stored, three integers of eight bytes, with their unit between them. A limit
-- has a `capacity`, the `unit`s in a thousandth of a token, and the units of `refill`, which come back each microsecond.

local EXACT = 9007199254740991
local MOST_AHEAD = 10000000
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local pack, unpack = struct.pack, struct.unpack

-- An amount in another bucket's units, in ours: rounded up, so that nothing spent is forgotten.
local function convert(spent, from, unit)
  local thousandths = floor(spent / from)
  local rest = (spent - thousandths * from) * unit
  if rest <= EXACT then rest = ceil(rest / from) else rest = unit end
  return min(thousandths * unit + rest, EXACT)
end

return {
  -- Reads what is stored, as it is worth now; false for a value that cannot be that. Also returns whether it must be
  -- written although nothing is charged: a moment too far ahead would otherwise be taken as now at every look.
  open = function(limit, value, now)
    if type(value) ~= 'string' or #value ~= 24 then return false end
    local spent, unit, since = unpack('<I8I8I8', value)
    if spent > EXACT or unit > EXACT or unit == 0 or since > EXACT then return false end
    if unit ~= limit.unit then spent = convert(spent, unit, limit.unit) end
    if since - now > MOST_AHEAD then return {spent, now}, true end
    if now > since then
      spent = spent - (now - since) * limit.refill
      if spent < 0 then spent = 0 end
      since = now
    end
    return {spent, since}
  end,

  full = function(limit, now)
    return {0, now}
  end,

  empty = function(limit, now)
    return {limit.capacity, now}
  end,

  charge = function(limit, bucket, cost)
    bucket[1] = bucket[1] + cost * limit.unit
  end,

  -- What to store, and until when: then the bucket is full again.
  close = function(limit, bucket)
    local spent, since = bucket[1], bucket[2]
    return pack('<I8I8I8', spent, limit.unit, since), since + ceil(spent / limit.refill)
  end,

  -- A product that is not exact is larger than anything that is spent.
  give_back = function(value, amount)
    if type(value) ~= 'string' or #value ~= 24 then return false end
    local spent, unit, since = unpack('<I8I8I8', value)
    if spent > EXACT or unit > EXACT or unit == 0 or since > EXACT then return false end
    return pack('<I8I8I8', max(spent - amount * unit, 0), unit, since)
  end,
}
