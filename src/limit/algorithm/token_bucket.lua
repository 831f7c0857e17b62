-- Steps a token bucket: the twin of token_bucket.rs, in doubles that hold every integer below 2^53 exactly.
-- What is remembered is what is spent, in which unit, and since when: three integers of eight bytes.

local EXACT = 9007199254740991
local HOUR = 3600000000

-- An amount in another bucket's units, in ours: rounded up, so that nothing spent is forgotten.
local function convert(spent, from, unit)
  local thousandths = math.floor(spent / from)
  local rest = (spent - thousandths * from) * unit
  if rest <= EXACT then rest = math.ceil(rest / from) else rest = unit end
  return math.min(thousandths * unit + rest, EXACT)
end

return {
  -- The capacity, the units in a thousandth of a token, and the units that come back each microsecond.
  new = function(capacity, unit, refill)
    return {capacity = capacity, unit = unit, refill = refill, spent = 0, since = 0, key = 0, twin = 0}
  end,

  -- Reads what is stored, as it is worth now; false for a value that cannot be that.
  open = function(limit, value, now)
    if type(value) ~= 'string' or #value ~= 24 then return false end
    local spent, unit, since = struct.unpack('<I8I8I8', value)
    if spent > EXACT or unit > EXACT or unit == 0 or since > EXACT or since - now > HOUR then return false end
    if unit ~= limit.unit then spent = convert(spent, unit, limit.unit) end
    if now > since then
      spent = spent - (now - since) * limit.refill
      if spent < 0 then spent = 0 end
      since = now
    end
    limit.spent, limit.since = spent, since
    return true
  end,

  fill = function(limit, now)
    limit.spent, limit.since = 0, now
  end,

  drain = function(limit, now)
    limit.spent, limit.since = limit.capacity, now
  end,

  -- Subtractions only: a sum could leave the range in which a double is exact.
  fits = function(limit, cost)
    return limit.spent <= limit.capacity - cost * limit.unit
  end,

  charge = function(limit, cost)
    limit.spent = limit.spent + cost * limit.unit
  end,

  -- What to store, and when the bucket is full again.
  close = function(limit)
    local spent, since = limit.spent, limit.since
    return struct.pack('<I8I8I8', spent, limit.unit, since), since + math.ceil(spent / limit.refill)
  end,
}
