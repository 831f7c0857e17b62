-- Takes the charges of many requests from many buckets, atomically, on the server's clock. Contains no algorithm: the function
-- `make_twin` and the time `now` are defined before this text.
--
-- KEYS are the buckets. ARGV[1] is all else: integers of two bytes, amounts of eight, the low byte first. It begins with how
-- many limits there are; for each follow the index of its twin, and its numbers. Then come the requests, in runs of equal
-- ones: how many they are, how many enforced charges each has, and how many shadow charges; then for each charge its bucket's
-- index in KEYS, its limit's index, and its cost in thousandths. Several enforced charges to one bucket are one charge, of the
-- same cost: all are checked, and the last is charged. Then 2^15 is added to how many requests there are, and after the three
-- numbers comes how many of the enforced charges, the first ones, are only checked, and how many of these, the last ones, are checks
-- that never spend.
-- A request that is refused can begin bans, which are written although nothing is charged.
-- The reply is `now`, how many buckets had to be healed, how many requests of each run were granted (the first ones),
-- and each bucket's value as it was found, or its twin's digest of that; nil for a bucket that is full. A run with a limit
-- whose numbers do not hold now is left out: it has -1, and charges nothing. If the server has no memory left for a write, nothing is
-- charged, and a run has -2 whose first request would have been granted.
--
-- ARGV[2], in a call whose gateway holds something of buckets, is what it says: its eight bytes as an owner, its sequence in
-- six bytes; then how many reports are about buckets of the requests, and for each of them the bucket's index in KEYS, a
-- limit's index, what the owner holds in six bytes, and for a limit whose twin `settles`, in eight bytes each, the sums of
-- what it has settled: as it knew it to be accepted, and now. These reports come before all charges, and stay if those are
-- refused. Each bucket of which something is asked has one. If the report was not newer than the last one, a run with that
-- bucket has -3, and charges nothing.
-- Then come the reports about other buckets, which are the last ones of KEYS: the index of the first one; and in runs of
-- buckets whose reports are the same, how many they are, and their limit's index, what the owner holds, and its sums. In place
-- of its value such a bucket has 1 in the reply if the report was newer than the last one, otherwise 0. A bucket has -1 there
-- if the numbers of its report's limit do not hold now: it is not read, and a run with it charges nothing.
-- Without memory for the reports the reply has -1 healed buckets.
--
-- Most calls carry few requests, so little is made for each: a closure, a table, or a local that a closure uses takes longer
-- than to look up a function in its library.

-- The bucket with this value, or an error.
local function open(value, limit, now)
  if value and type(value) == 'table' then
    if not string.find(value.err, '^WRONGTYPE') then return value end
    value = ''
  end
  local bucket = limit.twin.open(limit, value, now)
  if bucket.invalid then
    -- An invalid value must not become a free refill.
    bucket.found, bucket.changed = limit.twin.close(limit, bucket), true
  end
  return bucket
end

-- The same bucket for another limit. While a reload changes the numbers of a limit, a bucket can be charged under two sets; it
-- is then read as the limit that charged it last left it.
local function read_again(buckets, key, limit, now)
  local last, value = buckets[key], buckets[key].found
  if last.changed then value = last.limit.twin.close(last.limit, last) end
  local bucket = limit.twin.open(limit, value, now)
  if bucket.changed then buckets[key] = bucket end
  last.mixed, bucket.mixed = true, true
  bucket.found, bucket.invalid, bucket.old, bucket.stored_until = last.found, last.invalid, last.old, last.stored_until
  return bucket
end

-- Begins the bans of a refused request whose enforced charges are at `from`. None begins if one of its buckets is banned already. Nor
-- do the `checks` begin one, which are the last of the first `checked` charges. Returns whether one begins; without memory, whether
-- one would begin.
local function begin_bans(text, from, enforced, checked, checks, limits, buckets, now, is_full)
  for index = 0, enforced - 1 do
    local key, number = struct.unpack('<HH', text, from + 12 * index)
    local twin = limits[number].twin
    if twin.is_banned and twin.is_banned(buckets[key]) then return false end
  end
  local begun = false
  for index = enforced - 1, 0, -1 do
    local key, number, cost = struct.unpack('<HHI8', text, from + 12 * index)
    local limit, bucket = limits[number], buckets[key]
    local twin = limit.twin
    if twin.begins_ban and (index >= checked or index < checked - checks) then
      if bucket.limit ~= limit then bucket = read_again(buckets, key, limit, now) end
      if twin.begins_ban(limit, bucket, cost) then
        begun = true
        if is_full then break end
        twin.begin_ban(limit, bucket)
        buckets[key] = bucket
      end
    end
  end
  return begun
end

local text, reports, unpack = ARGV[1], ARGV[2], struct.unpack
local limits, count, at = {}, unpack('<H', text)
local made, twin, bans
for index = 1, count do
  local kind = unpack('<H', text, at)
  if kind ~= made then made, twin = kind, make_twin(kind) end
  limits[index], at = twin.new(text, at + 2, now)
  limits[index].twin = twin
  bans = bans or twin.begins_ban
end

local first, is_full, written, was_full = at, false, false, false
repeat
  was_full, at = is_full, first
  -- By the indices of their keys: as the limit left them that charged them last.
  local buckets = {}
  -- With room for what follows.
  local reply, replied = {now, 0, nil, nil, nil, nil}, 2
  local owner, sequence, said
  if reports then
    local asked
    sequence, asked, said = unpack('<I6H', reports, 9)
    owner = string.sub(reports, 1, 8)
    for _ = 1, asked do
      local key, number, held, after = unpack('<HHI6', reports, said)
      local limit, before, settled = limits[number]
      if limit.twin.settles then before, settled, after = unpack('<I8I8', reports, after) end
      said = after
      if limit.outside then
        buckets[key] = {limit = limit, found = false, changed = false, old = true, reported = -1}
      else
        local bucket = open(redis.pcall('GET', KEYS[key]), limit, now)
        if bucket.err then return bucket end
        buckets[key] = bucket
        bucket.old = not limit.twin.accept(limit, bucket, owner, sequence, held, before, settled)
      end
    end
  end
  while at <= #text do
    local times, enforced, shadow, from = unpack('<HHH', text, at)
    local checked, checks = 0, 0
    if times >= 32768 then
      times = times - 32768
      checked, checks, from = unpack('<HH', text, from)
    end
    local granted, charges, outside, old, begin = times, enforced + shadow, false, false, from
    at = from
    for index = 1, charges do
      local key, number, cost, after = unpack('<HHI8', text, at)
      local limit, bucket = limits[number], buckets[key]
      at = after
      if limit.outside then
        outside = true
      else
        if not bucket then
          bucket = open(redis.pcall('GET', KEYS[key]), limit, now)
          if bucket.err then return bucket end
          buckets[key] = bucket
        elseif bucket.limit ~= limit then
          bucket = read_again(buckets, key, limit, now)
        end
        if reports and bucket.old then old = true end
        -- At one moment equal requests are granted until one of their buckets cannot pay.
        if index <= enforced then
          local most = limit.twin.most(limit, bucket, cost)
          if most < granted then granted = most end
        end
      end
    end
    if granted < 0 then granted = 0 end
    if old then granted = -3 end
    if outside then granted = -1 end
    if is_full then
      if granted > 0 then granted = -2 end
    elseif granted > 0 then
      from = from + 12 * checked
      for index = checked + 1, charges do
        local key, number, cost, after = unpack('<HHI8', text, from)
        local limit, bucket, paid = limits[number], buckets[key], granted
        from = after
        if bucket.limit ~= limit then bucket = read_again(buckets, key, limit, now) end
        if index > enforced then
          paid = limit.twin.most(limit, bucket, cost)
          if paid > granted then paid = granted end
        end
        if paid > 0 then
          limit.twin.charge(limit, bucket, paid * cost)
          bucket.changed, buckets[key] = true, bucket
        end
        if bans and paid < granted and limit.twin.begins_ban and limit.twin.begins_ban(limit, bucket, cost) then
          limit.twin.begin_ban(limit, bucket)
          buckets[key] = bucket
        end
      end
    end
    if bans and granted >= 0 and granted < times
      and begin_bans(text, begin, enforced, checked, checks, limits, buckets, now, is_full) and is_full then
      granted = -2
    end
    replied = replied + 1
    reply[replied] = granted
  end

  if reports and said <= #reports then
    local key, from = unpack('<H', reports, said)
    local pcall, keys, type = redis.pcall, KEYS, type
    -- Without memory nothing is written, so nothing is read.
    while from <= #reports and not is_full do
      local times, number, held, after = unpack('<HHI6', reports, from)
      local limit, last, before, settled = limits[number], key + times - 1
      local twin = limit.twin
      if twin.settles then before, settled, after = unpack('<I8I8', reports, after) end
      from = after
      if limit.outside then
        for other = key, last do reply[replied + other] = -1 end
        last = 0
      end
      for other = key, last do
        local name, renewed = keys[other], false
        local value = pcall('GET', name)
        if type(value) == 'string' then renewed = twin.renew(limit, value, owner, sequence, held) end
        if renewed then
          local answer = pcall('SET', name, renewed, 'KEEPTTL')
          if answer.err then
            if written or not string.find(answer.err, '^OOM') then return answer end
            is_full = true
            break
          end
          written, reply[replied + other] = true, 1
        else
          local bucket = open(value, limit, now)
          if bucket.err then return bucket end
          buckets[other] = bucket
          bucket.reported = twin.accept(limit, bucket, owner, sequence, held, before, settled) and 1 or 0
        end
      end
      key = key + times
    end
  end

  local last_left, left_text
  for key = 1, #KEYS do
    local bucket, value = buckets[key], false
    if bucket then
      local limit = bucket.limit
      value = bucket.found
      if bucket.changed and not is_full then
        local stored, kept_until = limit.twin.close(limit, bucket)
        local answer
        if kept_until == bucket.stored_until then
          answer = redis.pcall('SET', KEYS[key], stored, 'KEEPTTL')
        else
          local left = math.max(math.ceil((kept_until - now) / 1000), 0) + 1
          -- Some servers would print a large number with an exponent.
          if left ~= last_left then last_left, left_text = left, string.format('%.0f', left) end
          answer = redis.pcall('SET', KEYS[key], stored, 'PX', left_text)
        end
        if answer.err then
          -- A script that has written may go on, so nothing was written. Requests that are refused need no memory.
          if written or not string.find(answer.err, '^OOM') then return answer end
          is_full = true
          break
        end
        written = true
      end
      if bucket.invalid and not is_full then reply[2] = reply[2] + 1 end
      if bucket.reported then
        value = bucket.reported
      elseif value and limit.twin.digest and not bucket.mixed then
        -- A digest is for one limit.
        value = limit.twin.digest(limit, bucket, value)
      end
      reply[replied + key] = value
    elseif not reply[replied + key] then
      reply[replied + key] = false
    end
  end
  if is_full and reports then reply[2] = -1 end
  if is_full == was_full then return reply end
until false
