-- Takes the charges of many requests from many buckets, atomically, on the server's clock. Contains no algorithm: the
-- functions `make_twin` and `make_raises` and the time `now` are defined before this text. The field `limit` of a bucket with
-- raises is a copy of the request's limit, with a larger capacity.
--
-- KEYS are the buckets. ARGV[1] has the limits and the requests. Counts and indices have two bytes, amounts eight,
-- little-endian. It begins with the number of limits, and for each limit the index of its twin and its settings. Then
-- come runs of equal requests. A run has the numbers of requests, of enforced charges and of shadow charges. It has for
-- each charge the bucket's index in KEYS, the limit's index, and the cost in thousandths. Several enforced charges to
-- one bucket have the same cost, their sum: all are checked, and the last is charged. If some charges are only checked,
-- 2^15 is added to the number of requests, and two more numbers follow the three: how many enforced charges, the first
-- ones, are only checked, and how many of these, the last ones, never spend. A refused request can begin bans, which
-- are written although nothing is charged, and so is the mark of a threshold that settled costs have reached.
--
-- The reply is `now`, the number of healed buckets, the number of granted requests of each run (its first ones), and
-- each bucket's value as it was found, or its twin's digest of that. A full bucket is nil. A run has -1, and charges
-- nothing, if the settings of a limit do not hold now. If the server has no memory for a write, nothing is charged. Then
-- a run has -2 if its first request would have been granted, and -4 if its first request would have begun a ban: it is
-- refused without the ban.
--
-- ARGV[2] has the reports, if the gateway holds something of buckets: the owner (eight bytes), its sequence (six
-- bytes), and the number of reports about buckets of the requests. Such a report has the bucket's index in KEYS, a
-- limit's index, and the held amount (six bytes). If the limit's twin `settles`, two sums of settled costs follow: the
-- sum that the owner knew to be accepted, and the present one. If the twin `resets`, three numbers of eight bytes
-- follow: the owner's resets that it knew to be accepted, all its resets, and the sum at the last one. These reports
-- come before all charges, and stay if the charges are refused. If the owner is a timed hold, the time for which its reports
-- count (six bytes) follows the number of reports, and they stay only if they are charged. There is one for each bucket of which
-- something is asked. A run has -3, and charges nothing, if a report about one of its buckets was not newer than the last one.
--
-- Then come the reports about other buckets, which are the last ones of KEYS: the index of the first, and runs of
-- buckets with equal reports. A run has the number of buckets, the limit's index, the held amount, and the sums. In the
-- reply such a bucket has 1 in place of its value if its report was accepted, 2 if its timed hold had settled before,
-- otherwise 0. A bucket has -1 if the settings of its report's limit do not hold now: it is not read, and a run with it
-- charges nothing. Without memory for the reports, the number of healed buckets is -1.
--
-- Most calls carry few requests, so little is made for each: a closure, a table, or a local that a closure uses takes
-- longer than to look up a function in its library.

-- Returns the bucket with this value, or the error.
local function open(value, limit, now)
  if value and type(value) == 'table' then
    if not string.find(value.err, '^WRONGTYPE') then return value end
    value = ''
  end
  local bucket = limit.twin.open(limit, value, now)
  if bucket.invalid then bucket = make_raises().open(limit, value, now) or bucket end
  if bucket.invalid then
    -- An invalid value must not become a free refill.
    bucket.rest = limit.twin.close(bucket.limit, bucket)
    bucket.found, bucket.changed = (bucket.raises or '') .. bucket.rest, true
  end
  return bucket
end

-- Returns the same bucket for another limit. While a reload changes a limit's settings, a bucket can be charged under
-- both. It is then read as the last charge left it.
local function read_again(buckets, key, limit, now)
  local last, value = buckets[key], buckets[key].found
  if last.limit.plain == limit then return last end
  if last.changed then value = (last.raises or '') .. last.limit.twin.close(last.limit, last) end
  local bucket = limit.twin.open(limit, value, now)
  if bucket.invalid then bucket = make_raises().open(limit, value, now) or bucket end
  if bucket.changed then buckets[key] = bucket end
  last.mixed, bucket.mixed = true, true
  bucket.found, bucket.invalid, bucket.old, bucket.stored_until = last.found, last.invalid, last.old, last.stored_until
  bucket.is_take, bucket.is_held, bucket.was_changed = last.is_take, last.is_held, last.was_changed
  return bucket
end

-- Returns a bucket as it was found, without what the call has changed, to be written.
local function opened_again(last, now)
  local bucket = open(last.found, last.limit.plain or last.limit, now)
  -- A healed value is not what is stored.
  if last.invalid then bucket.stored_until = nil end
  bucket.changed, bucket.invalid, bucket.mixed = true, last.invalid, last.mixed
  return bucket
end

-- Begins the bans of a refused request, whose enforced charges are at `from`. No ban begins if one of its buckets is
-- banned already. The last `checks` of the first `checked` charges begin none. Returns whether a ban begins, or without
-- memory whether one would begin.
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
      if bucket.limit ~= limit then
        bucket = read_again(buckets, key, limit, now)
        limit = bucket.limit
      end
      if twin.begins_ban(limit, bucket, cost) then
        begun = true
        if is_full then break end
        twin.begin_ban(limit, bucket)
        bucket.is_held, buckets[key] = true, bucket
      end
    end
  end
  return begun
end

-- Tells the thresholds that settled costs have reached, of a refused request whose charges are at `from`.
local function tell_settled(text, from, charges, limits, buckets, now, tell)
  for index = 0, charges - 1 do
    local key, number = struct.unpack('<HH', text, from + 12 * index)
    local limit, bucket = limits[number], buckets[key]
    if limit.shares and limit.twin.settles then
      if bucket.limit ~= limit then
        bucket = read_again(buckets, key, limit, now)
        limit = bucket.limit
      end
      if tell(limit, bucket) then bucket.changed, buckets[key] = true, bucket end
    end
  end
end

local text, reports, unpack = ARGV[1], ARGV[2], struct.unpack
local limits, count, at = {}, unpack('<H', text)
local made, twin, bans, tell, tells_settled
for index = 1, count do
  local kind = unpack('<H', text, at)
  if kind ~= made then made, twin = kind, make_twin(kind) end
  limits[index], at = twin.new(text, at + 2, now)
  limits[index].twin = twin
  bans = bans or twin.begins_ban
  if limits[index].shares then tell, tells_settled = tell or make_raises().tell, tells_settled or twin.settles end
end

local first, is_full, written, was_full = at, false, false, false
repeat
  was_full, at = is_full, first
  -- The buckets by the indices of their keys, as the last charge left them.
  local buckets = {}
  -- Reserves room for more elements.
  local reply, replied = {now, 0, nil, nil, nil, nil}, 2
  local owner, sequence, said, life
  if reports then
    local asked
    sequence, asked, said = unpack('<I6H', reports, 9)
    owner = string.sub(reports, 1, 8)
    if string.sub(owner, 1, 2) == '\254\255' then life, said = unpack('<I6', reports, said) end
    for _ = 1, asked do
      local key, number, held, after = unpack('<HHI6', reports, said)
      local limit, before, settled, known, resets, at_reset = limits[number]
      if limit.twin.settles then before, settled, after = unpack('<I8I8', reports, after) end
      if limit.twin.resets then known, resets, at_reset, after = unpack('<I8I8I8', reports, after) end
      said = after
      if limit.outside then
        buckets[key] = {limit = limit, found = false, changed = false, old = true, reported = -1}
      else
        local bucket = open(redis.pcall('GET', KEYS[key]), limit, now)
        if bucket.err then return bucket end
        buckets[key] = bucket
        bucket.is_take, bucket.was_changed = life, bucket.changed
        bucket.old =
          not limit.twin.accept(limit, bucket, owner, sequence, held, before, settled, known, resets, at_reset, life)
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
        limit = bucket.limit
        if reports and bucket.old then old = true end
        -- Equal requests at one moment are granted until one of their buckets cannot pay.
        if index <= enforced then
          local most = limit.twin.most(limit, bucket, cost, index <= checked and index > checked - checks)
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
        if bucket.limit ~= limit then
          bucket = read_again(buckets, key, limit, now)
          limit = bucket.limit
        end
        if index > enforced then
          paid = limit.twin.most(limit, bucket, cost)
          if paid > granted then paid = granted end
        end
        if paid > 0 then
          limit.twin.charge(limit, bucket, paid * cost)
          bucket.changed, bucket.is_held, buckets[key] = true, true, bucket
          if limit.shares then tell(limit, bucket) end
        end
        if bans and paid < granted and limit.twin.begins_ban and limit.twin.begins_ban(limit, bucket, cost) then
          limit.twin.begin_ban(limit, bucket)
          bucket.is_held, buckets[key] = true, bucket
        end
      end
    end
    if tells_settled and not is_full and granted >= 0 and granted < times then
      tell_settled(text, begin, charges, limits, buckets, now, tell)
    end
    if bans and granted >= 0 and granted < times
      and begin_bans(text, begin, enforced, checked, checks, limits, buckets, now, is_full) and is_full then
      granted = -4
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
      local limit, last, before, settled, known, resets, at_reset = limits[number], key + times - 1
      local twin = limit.twin
      if twin.settles then before, settled, after = unpack('<I8I8', reports, after) end
      if twin.resets then known, resets, at_reset, after = unpack('<I8I8I8', reports, after) end
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
          local accepted = twin.accept(limit, bucket, owner, sequence, held, before, settled, known, resets, at_reset, life)
          bucket.reported = accepted and 1 or bucket.is_settled and 2 or 0
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
      -- A timed hold that was refused leaves nothing, unless it begins a ban. What was found is then written without it.
      if bucket.is_take and not bucket.is_held then
        if bucket.was_changed then bucket = opened_again(bucket, now) else bucket.changed = false end
        limit = bucket.limit
      end
      if bucket.changed and not is_full then
        local stored, kept_until = limit.twin.close(limit, bucket)
        if bucket.raises then stored, kept_until = bucket.raises .. stored, math.max(kept_until, bucket.raised_until) end
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
          -- Redis lets a script that has written go on, so nothing was written. Requests that are refused need no
          -- memory.
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
        -- A digest fits only one limit.
        if not bucket.rest then
          value = limit.twin.digest(limit, bucket, value)
        elseif bucket.rest ~= '' then
          value = string.sub(value, 1, #value - #bucket.rest) .. limit.twin.digest(limit, bucket, bucket.rest)
        end
      end
      reply[replied + key] = value
    elseif not reply[replied + key] then
      reply[replied + key] = false
    end
  end
  if is_full and reports then reply[2] = -1 end
  if is_full == was_full then return reply end
until false
