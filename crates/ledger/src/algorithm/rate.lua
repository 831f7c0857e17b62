-- Holds what token_bucket and leaky_bucket share: a bucket that empties at a rate, in doubles that hold every integer
-- below 2^53 exactly. A bucket is the spent amount, and the moment since which it empties. It is stored as three
-- integers of eight bytes: the amount, its unit, and the moment. A limit has a `capacity`, the `unit`s in a thousandth
-- of a token, and the units of `refill`, which come back each microsecond.

-- Converts an amount from one unit to another, rounded up, so that nothing spent is forgotten.
local function convert(spent, from, unit)
  local thousandths = math.floor(spent / from)
  local rest = (spent - thousandths * from) * unit
  if rest < 2^53 then rest = math.ceil(rest / from) else rest = unit end
  return math.min(thousandths * unit + rest, 2^53 - 1)
end

local function is_invalid(spent, unit, since)
  return not spent or spent >= 2^53 or unit >= 2^53 or unit == 0 or since >= 2^53
end

-- A moment too far ahead is replaced by now. The bucket must be written, or every read would replace the moment again.
local function open(limit, value, now)
  local bucket = {0, now, limit = limit, found = value, changed = false}
  if not value then return bucket end
  local spent, unit, since
  if #value == 24 then spent, unit, since = struct.unpack('<I8I8I8', value) end
  if is_invalid(spent, unit, since) then
    bucket[1], bucket.invalid = limit.capacity, true
    return bucket
  end
  if unit ~= limit.unit then spent = convert(spent, unit, limit.unit) end
  bucket[1] = spent
  if since - now > 10000000 then
    bucket.changed = true
  elseif now > since then
    bucket[1] = math.max(spent - (now - since) * limit.refill, 0)
  else
    bucket[2] = since
  end
  return bucket
end

local function charge(limit, bucket, cost)
  bucket[1] = bucket[1] + cost * limit.unit
end

-- Returns the value to store, and when the bucket is full again.
local function close(limit, bucket)
  local spent, since = bucket[1], bucket[2]
  return struct.pack('<I8I8I8', spent, limit.unit, since), since + math.ceil(spent / limit.refill)
end

-- If `amount * unit` is not exact, it is larger than any spent amount.
local function give_back(value, amount)
  local spent, unit, since
  if #value == 24 then spent, unit, since = struct.unpack('<I8I8I8', value) end
  if is_invalid(spent, unit, since) then return false end
  return struct.pack('<I8I8I8', math.max(spent - amount * unit, 0), unit, since)
end

