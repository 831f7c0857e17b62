-- Gives amounts back to buckets, atomically: amounts that an operator grants, and charges of a request that another
-- bucket refused, less what has been refilled since. The functions `make_twin` and `make_raises`, the reply `time` of TIME, and
-- `now` in microseconds are defined before this text.
--
-- KEYS are the buckets. ARGV[1] has for each the index of its twin (two bytes), the amount in thousandths (eight
-- bytes), and the time of the charge (eight bytes), which is 0 for an operator's amount. For a charge, the
-- settings of its limit follow, and those of the limit that refills the bucket fastest.
--
-- The reply is `time`, and for each key its value before and after: nil for a full bucket, and an empty text for a key
-- of another type. An invalid value stays as it is. The time to live of a bucket does not change. The log of Redis has
-- a line about an operator's amounts, because no gateway logs them.

-- Takes what is left of a charge out of a stored value. Returns the new value, or false if nothing is left to take out.
local function without_charge(twin, limit, value, amount, charged, fastest)
  if not twin.undo or limit.outside then return false end
  limit.twin = twin
  local bucket = twin.open(limit, value, now)
  if bucket.invalid then bucket = make_raises().open(limit, value, now) or bucket end
  if bucket.invalid then return false end
  local left = twin.undo(bucket.limit, bucket, amount, charged, now, fastest)
  if left == true then left = twin.close(bucket.limit, bucket) end
  return left and (bucket.raises or '') .. left
end

local text, at = ARGV[1], 1
local reply, granted, most = {time}, 0, 0
for index, key in ipairs(KEYS) do
  local kind, amount, charged, limit, fastest
  kind, amount, charged, at = struct.unpack('<HI8I8', text, at)
  local twin = make_twin(kind)
  if charged > 0 then
    limit, at = twin.new(text, at, now)
    fastest, at = twin.new(text, at, now)
  end
  local before = redis.pcall('GET', key)
  if type(before) == 'table' then
    if not string.find(before.err, '^WRONGTYPE') then return before end
    before = ''
  end
  local after = before
  if before then
    local less
    if limit then
      less = without_charge(twin, limit, before, amount, charged, fastest)
    else
      less = twin.give_back(before, amount, now) or make_raises().give_back(twin, before, amount, now)
      if less then granted, most = granted + 1, math.max(most, amount) end
    end
    if less then
      redis.call('SET', key, less, 'KEEPTTL')
      after = less
    end
  end
  reply[2 * index], reply[2 * index + 1] = before, after
end
if granted > 0 then
  local amount = string.gsub(string.format('%.3f', most / 1000), '%.?0+$', '')
  local line = 'tollgate: amounts were given back by an operator buckets=' .. granted .. ' amount=' .. amount
  redis.log(redis.LOG_NOTICE, line)
end
return reply
