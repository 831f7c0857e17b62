-- The entries of a bucket's owners, as owner_entries.rs describes: that of the last speaker first, those whose time is over last.
-- A twin that uses this text defines WIDTH before it: the bytes of an entry. Entries of 40 bytes end with the sum that
-- their owner has settled.

local EXACT = 9007199254740991
local MOST_AHEAD = 10000000
local LIFE, KEPT, MINUTE = 7000000, 600000000, 60000000
local MOST_OWNERS, MOST_HELD = 1024, 2^43 - 1
local floor, max, min = math.floor, math.max, math.min
local pack, unpack, sub, find = struct.pack, struct.unpack, string.sub, string.find

-- Of packed entries: how many they are, the sum held, the bucket's moment, how many entries are live; false for a value that
-- cannot be that.
local function read_entries(value)
  local count = (#value - 24) / WIDTH
  if count < 1 or count > MOST_OWNERS or count ~= floor(count) then return false end
  local form, sum, moment, live = unpack('<BI7I8I8', value)
  if form ~= 1 or sum > EXACT or moment > EXACT or live > count then return false end
  if WIDTH == 40 then
    for index = 1, count do
      if unpack('<I8', value, 40 * index + 17) > EXACT then return false end
    end
  end
  return count, sum, moment, live
end

-- Until when an entry counts.
local function ends(value, index)
  return (unpack('<I7', value, WIDTH * (index - 1) + 45))
end

-- Until when a server keeps entries whose bucket has this moment: the same in all writes of a minute. They are kept for ten
-- minutes after their owner's last report.
local function kept_until(moment)
  return floor(moment / MINUTE) * MINUTE + MINUTE + KEPT
end

-- The same entries, each ending so much earlier.
local function moved(value, count, by)
  local parts = {sub(value, 1, 24)}
  for index = 1, count do
    local first = WIDTH * (index - 1) + 25
    parts[index + 1] = sub(value, first, first + 19) .. pack('<I7', max(min(ends(value, index), EXACT) - by, 0))
      .. sub(value, first + 27, first + WIDTH - 1)
  end
  return table.concat(parts)
end

-- Adds the entries to a bucket: `value` is packed, `count` how many they are, `live` how many count, `held` their sum, and `before`
-- the sum as it was found. False if the value cannot be entries.
local function open_entries(bucket, value, now)
  bucket.value, bucket.count, bucket.live, bucket.moment, bucket.held, bucket.before = '', 0, 0, now, 0, 0
  bucket.added, bucket.own, bucket.is_live = 0, '', 0
  if not value then return true end
  local count, sum, moment, live = read_entries(value)
  if not count then return false end
  bucket.stored_until = kept_until(moment)
  if moment - now > MOST_AHEAD then
    value, moment, bucket.changed = moved(value, count, moment - now), now, true
  end
  if now > moment then moment = now end
  while live > 0 and ends(value, live) <= moment do
    sum = max(sum - unpack('<I6', value, WIDTH * (live - 1) + 39), 0)
    live = live - 1
  end
  if live == 0 then sum = 0 end
  local kept = count
  while kept > live and ends(value, kept) + KEPT - LIFE <= moment do kept = kept - 1 end
  if kept < count then value = sub(value, 1, 24 + WIDTH * kept) end
  bucket.value, bucket.count, bucket.live, bucket.moment, bucket.held, bucket.before = value, kept, live, moment, sum, sum
  return true
end

-- Accepts a report, whose entry is then the first one. Returns what the owner has settled since its last report. False, and
-- nothing changes, if the report is not newer than that one.
local function accept_report(bucket, owner, sequence, held, from, to)
  local value, count, live, since, charged = bucket.value, bucket.count, bucket.live, false, from
  local place = find(value, owner, 25, true)
  while place and (place - 25) % WIDTH ~= 0 do place = find(value, owner, place + 1, true) end
  local rest
  to = min(to, EXACT)
  if place then
    local last, before = unpack('<I6I6', value, place + 8)
    bucket.own = sub(value, place, place + WIDTH - 1)
    if place < 25 + WIDTH * live then
      bucket.is_live = 1
      if sequence > last then
        bucket.held = max(bucket.held - before, 0)
        live = live - 1
        if before > 0 then since = sub(value, place + 27, place + 31) end
      end
    end
    if sequence <= last then return false end
    if WIDTH == 40 then charged = unpack('<I8', value, place + 32) end
    rest = sub(value, 25, place - 1) .. sub(value, place + WIDTH)
    count = count - 1
  else
    if count >= MOST_OWNERS then
      if live >= MOST_OWNERS then
        bucket.is_live = MOST_OWNERS
        return false
      end
      count = live
    end
    rest = sub(value, 25, 24 + WIDTH * count)
  end
  held = min(held, MOST_HELD)
  if held == 0 then
    since = pack('<I5', 0)
  elseif not since then
    since = pack('<I5', floor(bucket.moment / 1000000))
  end
  local entry = owner .. pack('<I6I6I7', sequence, held, bucket.moment + LIFE) .. since
  if WIDTH == 40 then
    -- The sum never falls, so that what an owner has settled is never charged twice. But an owner that says 0 has forgotten its
    -- sum, and begins again.
    entry = entry .. pack('<I8', place and to > 0 and max(to, charged) or to)
  end
  bucket.value = pack('<I8I8I8', 0, 0, 0) .. entry .. rest
  bucket.count, bucket.live, bucket.changed, bucket.held = count + 1, live + 1, true, bucket.held + held
  return max(to - charged, 0)
end

-- What to store of the entries, and until when.
local function close_entries(bucket)
  local value, added = bucket.value, bucket.added
  local head = pack('<BI7I8I8', 1, bucket.held, bucket.moment, bucket.live)
  if added == 0 then return head .. sub(value, 25), kept_until(bucket.moment) end
  local held, since = unpack('<I6', value, 39), sub(value, 52, 56)
  if held == 0 then since = pack('<I5', floor(bucket.moment / 1000000)) end
  return head .. sub(value, 25, 38) .. pack('<I6', held + added) .. sub(value, 45, 51) .. since .. sub(value, 57),
    kept_until(bucket.moment)
end

-- What the reply has of the entries: the sum, and that of the owner that calls, as they were found.
local function digest_entries(bucket)
  return pack('<BI7I8I8', 2, bucket.before, bucket.moment, bucket.is_live) .. bucket.own
end
