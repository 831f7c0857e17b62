-- Lets purses do acts, and homes hear words of regions, atomically, on the server's clock. The functions `make_twin` and `make_raises`
-- and `now` in microseconds are defined before this text.
--
-- KEYS are the buckets. ARGV[1] has the number of limits, and for each limit the index of its twin and its settings, as in take.lua.
-- Then it has for each key the index of its limit, the number of bytes of the act, and the act.
--
-- The reply is `now`, the number of healed buckets, and the reply to each act. An act has -1, and nothing is changed, if the settings of
-- its limit do not hold now, and -2 if the server had no memory to write what the act changes.

-- Returns the bucket with this value, or the error.
local function open(value, limit, now)
  if value and type(value) == 'table' then
    if not string.find(value.err, '^WRONGTYPE') then return value end
    value = ''
  end
  local bucket = limit.twin.open(limit, value, now)
  if bucket.invalid then bucket = make_raises().open(limit, value, now) or bucket end
  if bucket.invalid then bucket.changed = true end
  return bucket
end

local text, limits = ARGV[1], {}
local count, at = struct.unpack('<H', text)
for index = 1, count do
  local twin = make_twin(struct.unpack('<H', text, at))
  limits[index], at = twin.new(text, at + 2, now)
  limits[index].twin = twin
end

local reply = {now, 0}
for index, key in ipairs(KEYS) do
  local number, length, from = struct.unpack('<HH', text, at)
  local limit = limits[number]
  at = from + length
  if limit.outside then
    reply[index + 2] = -1
  else
    local bucket = open(redis.pcall('GET', key), limit, now)
    if bucket.err then return bucket end
    limit = bucket.limit
    local answer = limit.twin.hear(limit, bucket, text, from, now)
    if bucket.changed then
      local stored, kept_until = limit.twin.close(limit, bucket)
      if bucket.raises then stored, kept_until = bucket.raises .. stored, math.max(kept_until, bucket.raised_until) end
      -- Some servers would print a large number with an exponent.
      local left = string.format('%.0f', math.max(math.ceil((kept_until - now) / 1000), 0) + 1)
      local written = redis.pcall('SET', key, stored, 'PX', left)
      if written.err then
        -- What earlier acts of this call have changed stays. Their words can be sent again.
        if not string.find(written.err, '^OOM') then return written end
        answer = -2
      elseif bucket.invalid then
        reply[2] = reply[2] + 1
      end
    end
    reply[index + 2] = answer
  end
end
return reply
