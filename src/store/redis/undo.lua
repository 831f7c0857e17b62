-- Undoes charges of one request, each less what has come back since. The list `twins` and the time `now` are defined before
-- this text.
--
-- KEYS are the buckets. ARGV has for each the index of its algorithm in `twins`, how many numbers its limit has, the numbers,
-- as many of the limit that refills it fastest, the cost in thousandths, and the time of the charge. A bucket that is full, or cannot be read, stays as it is.

local read, undone = 1, 0
for _, key in ipairs(KEYS) do
  local twin = twins[tonumber(ARGV[read])]
  local count = tonumber(ARGV[read + 1])
  local limit, fastest = twin.new(ARGV, read + 1, now), twin.new(ARGV, read + 1 + count, now)
  read = read + 2 + 2 * count
  local cost, charged = tonumber(ARGV[read]), tonumber(ARGV[read + 1])
  read = read + 2
  local value = redis.pcall('GET', key)
  local bucket = twin.undo and not limit.outside and type(value) == 'string' and twin.open(limit, value, now)
  if bucket then
    local changed, kept_until = twin.undo(limit, bucket, cost, charged, now, fastest)
    if changed == true then changed, kept_until = twin.close(limit, bucket) end
    if changed then
      local left = math.max(math.ceil((kept_until - now) / 1000), 0) + 1
      redis.call('SET', key, changed, 'PX', string.format('%.0f', left))
      undone = undone + 1
    end
  end
end
return undone
