-- Takes the charges of many requests from many buckets, atomically, on the server's clock. Contains no algorithm: the list
-- `twins` and the time `now` are defined before this text.
--
-- KEYS are the buckets. ARGV[1] is the requests, in integers of two bytes, the low one first: runs of equal requests, each
-- how many times, how many enforced charges, how many shadow charges; then for each charge its bucket's index in KEYS,
-- its limit, and its cost among the costs. Several enforced charges to one bucket are one charge, of the same cost: all are
-- checked, and the last is charged. Then 2^15 is added to how many times, and after the three numbers comes how many of the
-- enforced charges, the first ones, are only checked. ARGV[2] is how many limits there are; for each follow the index of its
-- algorithm in `twins`, how many numbers it has, and the numbers; then the costs, in thousandths.
-- The reply is `now`, how many buckets had to be healed, how many requests of each run were granted (the first ones),
-- and each bucket's value as it was found, or its twin's digest of that; nil for a bucket that is full. A run with a limit
-- whose numbers do not hold now is left out: it has -1, and charges nothing.

local KEYS, ARGV, tonumber, byte = KEYS, ARGV, tonumber, string.byte
local call, pcall = redis.call, redis.pcall

local limits, costs, read = {}, {}, 2
for number = 1, tonumber(ARGV[2]) do
  local twin = twins[tonumber(ARGV[read + 1])]
  local limit = twin.new(ARGV, read + 2, now)
  limit.twin, limits[number] = twin, limit
  read = read + 2 + tonumber(ARGV[read + 2])
end
for index = read + 1, #ARGV do costs[index - read] = tonumber(ARGV[index]) end

-- By bucket: its value, its level, the limit by which that is computed, whether other limits asked it too, and whether it
-- must be written.
local found, buckets, holders, mixed, changed = {}, {}, {}, {}, {}
local healed = 0

local function first(key, limit)
  local value = pcall('GET', KEYS[key])
  if type(value) == 'table' and not string.find(value.err, '^WRONGTYPE') then return value end
  local twin, bucket, altered = limit.twin
  if not value then
    bucket = twin.full(limit, now)
  else
    bucket, altered = twin.open(limit, value, now)
    if altered then changed[key] = true end
    if not bucket then
      -- An invalid value must not become a free refill.
      bucket = twin.empty(limit, now)
      value, changed[key], healed = twin.close(limit, bucket), true, healed + 1
    end
  end
  found[key], buckets[key], holders[key] = value, bucket, limit
end

-- The level of a bucket for this limit. While a reload changes the numbers of a limit, a bucket can be charged under two
-- sets; it is then read as the limit that charged it last left it.
local function worth(key, limit)
  local holder = holders[key]
  if holder == limit then return buckets[key] end
  mixed[key] = true
  local value = found[key]
  if changed[key] then value = holder.twin.close(holder, buckets[key]) end
  if not value then return limit.twin.full(limit, now) end
  local bucket, altered = limit.twin.open(limit, value, now)
  if altered then buckets[key], holders[key], changed[key] = bucket, limit, true end
  return bucket
end

local reply = {now, 0}
local runs, at, count = ARGV[1], 1, 2
local keys, asked, prices = {}, {}, {}
while at < #runs do
  local t, tt, e, ee, s, ss = byte(runs, at, at + 5)
  at = at + 6
  local checked = 0
  if tt >= 128 then
    local c, cc = byte(runs, at, at + 1)
    at, tt, checked = at + 2, tt - 128, c + 256 * cc
  end
  local granted, enforced = t + 256 * tt, e + 256 * ee
  local charges = enforced + s + 256 * ss
  local outside = false
  for index = 1, charges do
    local k, kk, l, ll, c, cc = byte(runs, at, at + 5)
    local key, limit, cost = k + 256 * kk, limits[l + 256 * ll], costs[c + 256 * cc]
    at = at + 6
    keys[index], asked[index], prices[index] = key, limit, cost
    if limit.outside then
      outside = true
    else
      if found[key] == nil then
        local failure = first(key, limit)
        if failure then return failure end
      end
      -- At one moment equal requests are granted until one of their buckets cannot pay.
      local bucket = worth(key, limit)
      if index <= enforced then
        local most = limit.twin.most(limit, bucket, cost)
        if most < granted then granted = most end
      end
    end
  end
  if granted < 0 then granted = 0 end
  if outside then granted = -1 end
  if granted > 0 then
    for index = checked + 1, charges do
      local key, limit, times = keys[index], asked[index], granted
      local bucket = worth(key, limit)
      if index > enforced then
        times = limit.twin.most(limit, bucket, prices[index])
        if times > granted then times = granted end
      end
      if times > 0 then
        limit.twin.charge(limit, bucket, times * prices[index])
        buckets[key], holders[key], changed[key] = bucket, limit, true
      end
    end
  end
  count = count + 1
  reply[count] = granted
end

-- Written out once for each time to live: some servers would print a large number with an exponent.
local texts = {}
for key = 1, #KEYS do
  if changed[key] then
    local holder = holders[key]
    local value, kept_until = holder.twin.close(holder, buckets[key])
    local left = math.max(math.ceil((kept_until - now) / 1000), 0) + 1
    local text = texts[left]
    if not text then
      text = string.format('%.0f', left)
      texts[left] = text
    end
    call('SET', KEYS[key], value, 'PX', text)
  end
  local value = found[key] or false
  -- A digest is for one limit.
  if value and holders[key].twin.digest and not mixed[key] then
    value = holders[key].twin.digest(holders[key], buckets[key], value)
  end
  reply[count + key] = value
end
reply[2] = healed
return reply
