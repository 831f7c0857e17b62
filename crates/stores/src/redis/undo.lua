-- Undoes charges of one request, each less what has come back since. The function `make_twin` and the time `now` are defined
-- before this text.
--
-- KEYS are the buckets. ARGV[1] has for each the index of its twin, in two bytes, and then in eight bytes each the numbers of its
-- limit, those of the limit that refills it fastest, the cost in thousandths, and the time of the charge. A bucket that is full,
-- or cannot be read, stays as it is.

local text, at, undone = ARGV[1], 1, 0
for _, key in ipairs(KEYS) do
  local kind, limit, fastest, cost, charged
  kind, at = struct.unpack('<H', text, at)
  local twin = make_twin(kind)
  limit, at = twin.new(text, at, now)
  fastest, at = twin.new(text, at, now)
  cost, charged, at = struct.unpack('<I8I8', text, at)
  local value = redis.pcall('GET', key)
  if twin.undo and not limit.outside and type(value) == 'string' then
    local bucket, changed, kept_until = twin.open(limit, value, now)
    if not bucket.invalid then changed, kept_until = twin.undo(limit, bucket, cost, charged, now, fastest) end
    if changed == true then changed, kept_until = twin.close(limit, bucket) end
    if changed then
      local left = math.max(math.ceil((kept_until - now) / 1000), 0) + 1
      redis.call('SET', key, changed, 'PX', string.format('%.0f', left))
      undone = undone + 1
    end
  end
end
return undone
