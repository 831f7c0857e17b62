-- Opens buckets whose stored value begins with raises or a mark: the twin of mod.rs, annotations.rs and raised_bucket.rs. No
-- other twin accepts such a value, so only values that they find invalid are opened here. A limit has its twin as the field
-- `twin`.

local HOUR = 3600000000
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local pack, unpack, sub = struct.pack, struct.unpack, string.sub

-- Packs what precedes a plain value: a mark or an empty text, and a text of raises.
local function join(mark, raises)
  if mark == '' and raises == '' then return '' end
  return pack('<BBI5B', #mark / 24, #raises / 24, 0, 0x72) .. mark .. raises
end

-- Splits a value into the plain value, the mark if its period has not ended for an hour, and the raises that have not
-- ended. Returns the plain value, the mark and the raises as they are stored, the sum of the raises, and until when these
-- are kept. Returns false for a value without raises or a mark that are valid.
local function split(value, now)
  if #value < 32 then return false end
  local marks, count, zeros, head = unpack('<BBI5B', value)
  local rest = 9 + 24 * (marks + count)
  if zeros ~= 0 or head ~= 0x72 or marks > 1 or count > 16 or marks + count < 1 or #value < rest - 1 then return false end
  local mark, raises, sum, last = '', {}, 0, 0
  if marks == 1 then
    local amount, begins, ends = unpack('<I8I8I8', value, 9)
    if amount < 1 or amount >= 2^53 or begins >= ends or ends >= 2^53 then return false end
    if ends + HOUR > now then mark, last = sub(value, 9, 32), ends + HOUR end
  end
  for from = 9 + 24 * marks, rest - 1, 24 do
    local amount, ends = unpack('<I8I8', value, from + 8)
    if amount < 1 or amount >= 2^53 or ends >= 2^53 then return false end
    if ends > now then
      raises[#raises + 1] = sub(value, from, from + 23)
      sum, last = min(sum + amount, 2^53 - 1), max(last, ends)
    end
  end
  return sub(value, rest), mark, table.concat(raises), sum, last
end

-- Returns a limit with a larger capacity. Its field `plain` is the limit itself.
local function raise(limit, sum)
  if sum == 0 or limit.capacity == 0 or limit.twin.unraised then return limit end
  local raised, unit = {}, limit.unit or 1
  for name, value in pairs(limit) do raised[name] = value end
  raised.plain = limit
  raised.capacity = min(limit.capacity / unit + sum, floor((2^53 - 1) / unit)) * unit
  return raised
end

return {
  -- Opens a value with raises or a mark under the raised limit. The bucket also has the fields `raises` (what precedes the
  -- plain value), `raised_until` (until when that is kept), `mark`, `running` (the raises that have not ended) and `rest` (the
  -- plain value). Returns false for other values.
  open = function(limit, value, now)
    local rest, mark, raises, sum, last = split(value, now)
    if not rest then return false end
    local bucket = limit.twin.open(raise(limit, sum), rest ~= '' and rest, now)
    bucket.found, bucket.raises, bucket.raised_until, bucket.rest = value, join(mark, raises), last, rest
    bucket.mark, bucket.running, bucket.stored_until = mark, raises, nil
    return bucket
  end,

  -- Moves the mark of a bucket to the highest threshold of its limit that is reached, if it is above the mark. Returns
  -- whether it has moved. The caller writes the bucket.
  tell = function(limit, bucket)
    local spent, shares, capacity = bucket.spent or bucket, limit.shares, limit.capacity
    local amount, begins, told = spent[1], spent[2], 0
    if bucket.mark and bucket.mark ~= '' then
      local last, since = unpack('<I8I8', bucket.mark)
      if since == begins then told = last end
    end
    local reached, rest = told, capacity % 100
    while shares > 0 do
      local share = shares % 256
      local threshold = (capacity - rest) / 100 * share + ceil(rest * share / 100)
      if threshold <= amount and threshold > reached then reached = threshold end
      shares = (shares - share) / 256
    end
    if reached == told then return false end
    bucket.mark = pack('<I8I8I8', reached, begins, spent[3])
    bucket.raises = join(bucket.mark, bucket.running or '')
    bucket.raised_until = max(bucket.raised_until or 0, spent[3] + HOUR)
    return true
  end,

  -- Gives back to a value with raises or a mark, which stay. Returns the new value, or false for an invalid value.
  give_back = function(twin, value, amount, now)
    -- At the moment 0, no raise has ended.
    local rest, mark, raises = split(value, 0)
    if not rest or rest == '' then return rest and value end
    local less = twin.give_back(rest, amount, now)
    return less and join(mark, raises) .. less
  end,
}
