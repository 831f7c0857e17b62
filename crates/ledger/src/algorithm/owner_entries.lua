-- Keeps the entries of a bucket's owners, in the form that owner_entries.rs describes. A twin that uses this text
-- defines WIDTH before it: the bytes of an entry. Entries of 40 and more bytes have the sum that their owner has
-- settled, and those of 48 bytes then the number of its resets.

local EXACT = 9007199254740991
local MOST_AHEAD = 10000000
local LIFE, KEPT, MINUTE = 7000000, 600000000, 60000000
local MOST_OWNERS, MOST_HELD = 1024, 2^43 - 1
-- How the owner of a timed hold begins, how many such holds a bucket can have, and the sequence of a report that settles.
local TIMED, MOST_TIMED, SETTLE = '\254\255', 512, 2
-- How many timed holds that have ended or settled a bucket knows.
local MOST_ENDED = 64
local floor, max, min = math.floor, math.max, math.min
local pack, unpack, sub, find = struct.pack, struct.unpack, string.sub, string.find

-- Returns the number of packed entries, the sum held, the bucket's moment, the number of live entries, and that of timed
-- holds among them. Returns false for an invalid value.
local function read_entries(value)
  local count = (#value - 24) / WIDTH
  if count < 1 or count > MOST_OWNERS or count ~= floor(count) then return false end
  local form, sum, moment, live, timed, zeros = unpack('<BI7I8I2I2I4', value)
  if form ~= 1 or sum > EXACT or moment > EXACT or live > count or timed > live or zeros > 0 then return false end
  if WIDTH > 32 then
    for index = 1, count do
      local first = WIDTH * (index - 1) + 57
      if unpack('<I8', value, first) > EXACT or WIDTH == 48 and unpack('<I8', value, first + 8) > EXACT then return false end
    end
  end
  return count, sum, moment, live, timed
end

-- Returns until when an entry counts.
local function ends(value, index)
  return (unpack('<I7', value, WIDTH * (index - 1) + 45))
end

-- Returns until when a server keeps the entries of a bucket with this moment: for ten minutes after the moment's
-- minute. All writes of a minute give the same time.
local function kept_until(moment)
  return floor(moment / MINUTE) * MINUTE + MINUTE + KEPT
end

-- Returns when the last timed hold of a bucket ends, and how much all of them hold. Returns false for a bucket without timed holds.
local function timed_holds(bucket)
  if bucket.timed == 0 then return false end
  local value, last, held = bucket.value, false, 0
  for index = 1, bucket.live do
    local first = WIDTH * (index - 1) + 25
    if sub(value, first, first + 1) == TIMED then
      last, held = max(last or 0, ends(value, index)), held + unpack('<I6', value, first + 14)
      -- What is asked in this call is added to the first entry when it is stored.
      if index == 1 then held = held + bucket.added end
    end
  end
  return last, held
end

-- Drops the timed holds whose time is over, except for the last ones. Returns the entries and their number.
local function drop_old_timed(value, count, live)
  if count - live <= MOST_ENDED then return value, count end
  local kept, ended = {sub(value, 1, 24 + WIDTH * live)}, 0
  for index = live + 1, count do
    local entry = sub(value, WIDTH * (index - 1) + 25, WIDTH * index + 24)
    local is_timed = sub(entry, 1, 2) == TIMED
    if is_timed then ended = ended + 1 end
    if not is_timed or ended <= MOST_ENDED then kept[#kept + 1] = entry end
  end
  return table.concat(kept), live + #kept - 1
end

-- Returns entries without the timed holds that have ended and are not spent yet: an empty text if none is left. Returns false
-- for invalid entries.
local function without_ended(value, now)
  local count, sum, moment, live, timed = read_entries(value)
  if not count then return false end
  local kept, before = {''}, live
  for index = 1, count do
    local first = WIDTH * (index - 1) + 25
    local entry = sub(value, first, first + WIDTH - 1)
    if index <= before and sub(entry, 1, 2) == TIMED and ends(value, index) <= now then
      live, timed, sum = live - 1, max(timed - 1, 0), max(sum - unpack('<I6', entry, 15), 0)
    else
      kept[#kept + 1] = entry
    end
  end
  if #kept == count + 1 then return value end
  if #kept == 1 then return '' end
  kept[1] = pack('<BI7I8I2I2I4', 1, sum, moment, live, timed, 0)
  return table.concat(kept)
end

-- Moves all entries whose time is over behind the live ones. `before` is the moment at which the entries were stored. The field
-- `ended` then has the ends and amounts of timed holds that have ended without a report, in the order of their ends.
local function end_timed(bucket, value, count, live, before, moment)
  local over, kept, sum, timed, ended = {}, {}, 0, 0, false
  for index = 1, live do
    local first, last = WIDTH * (index - 1) + 25, ends(value, index)
    local entry, held = sub(value, first, first + WIDTH - 1), unpack('<I6', value, first + 14)
    local is_timed = sub(entry, 1, 2) == TIMED
    if last > moment then
      kept[#kept + 1], sum, timed = entry, sum + held, timed + (is_timed and 1 or 0)
    else
      over[#over + 1] = entry
      if is_timed and held > 0 then
        ended = ended or {}
        ended[#ended + 1] = {max(last, before), held}
      end
    end
  end
  if ended then
    -- An amount is spent as at its end, and what is spent comes back from then on.
    table.sort(ended, function(one, other) return one[1] < other[1] end)
    bucket.changed, bucket.ended = true, ended
  end
  value = sub(value, 1, 24) .. table.concat(kept) .. table.concat(over) .. sub(value, 25 + WIDTH * live)
  value, count = drop_old_timed(value, count, #kept)
  return value, count, #kept, sum, timed
end

-- Returns whether the time of a live entry is over.
local function is_any_over(value, live, moment)
  for index = 1, live do
    if ends(value, index) <= moment then return true end
  end
  return false
end

-- Returns the entries, each ending earlier by `by`.
local function moved(value, count, by)
  local parts = {sub(value, 1, 24)}
  for index = 1, count do
    local first = WIDTH * (index - 1) + 25
    parts[index + 1] = sub(value, first, first + 19) .. pack('<I7', max(min(ends(value, index), EXACT) - by, 0))
      .. sub(value, first + 27, first + WIDTH - 1)
  end
  return table.concat(parts)
end

-- Adds the entries to a bucket: `value` (packed), `count` (how many), `live` (how many count), `timed` (how many of these
-- belong to timed holds), `held` (their sum), and `before` (the sum as it was found). Returns false for an invalid value.
local function open_entries(bucket, value, now)
  bucket.value, bucket.count, bucket.live, bucket.moment, bucket.held, bucket.before = '', 0, 0, now, 0, 0
  bucket.added, bucket.own, bucket.is_live, bucket.timed, bucket.ended = 0, '', 0, 0, nil
  if not value then return true end
  local count, sum, moment, live, timed = read_entries(value)
  if not count then return false end
  bucket.stored_until = timed == 0 and kept_until(moment) or nil
  if moment - now > MOST_AHEAD then
    value, moment, bucket.changed = moved(value, count, moment - now), now, true
  end
  local before = moment
  if now > moment then moment = now end
  if timed > 0 and is_any_over(value, live, moment) then
    value, count, live, sum, timed = end_timed(bucket, value, count, live, before, moment)
  end
  while timed == 0 and live > 0 and ends(value, live) <= moment do
    sum = max(sum - unpack('<I6', value, WIDTH * (live - 1) + 39), 0)
    live = live - 1
  end
  if live == 0 then sum = 0 end
  local kept = count
  while kept > live and ends(value, kept) + KEPT - LIFE <= moment do kept = kept - 1 end
  if kept < count then value = sub(value, 1, 24 + WIDTH * kept) end
  bucket.value, bucket.count, bucket.live, bucket.moment, bucket.held, bucket.before = value, kept, live, moment, sum, sum
  bucket.timed = timed
  return true
end

-- Accepts a report, and moves the owner's entry to the front. Returns what the owner has settled since its last report
-- and its last reset, and whether it has reset the bucket. Returns false, and changes no entry, if the report is not
-- newer or there are too many owners. `life` is how long the report of a timed hold counts. The report with which such a hold
-- settles is accepted only if the hold has not ended. If it has settled before, the field `is_settled` is true.
local function accept_report(bucket, owner, sequence, held, from, to, known, resets, at_reset, life)
  local is_timed = sub(owner, 1, 2) == TIMED
  local settles = is_timed and sequence >= SETTLE
  if not is_timed then life = LIFE end
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
        if is_timed then bucket.timed = max(bucket.timed - 1, 0) end
        if before > 0 then since = sub(value, place + 27, place + 31) end
      end
    elseif settles then
      bucket.is_settled = last >= SETTLE
      return false
    end
    if sequence <= last then return false end
    if WIDTH > 32 then charged = unpack('<I8', value, place + 32) end
    if WIDTH == 48 then known = unpack('<I8', value, place + 40) end
    rest = sub(value, 25, place - 1) .. sub(value, place + WIDTH)
    count = count - 1
  else
    if settles then return false end
    if count >= MOST_OWNERS and live >= MOST_OWNERS or is_timed and bucket.timed >= MOST_TIMED then
      bucket.is_live = MOST_OWNERS
      return false
    end
    -- The last entry counts no more.
    if count >= MOST_OWNERS then count = count - 1 end
    rest = sub(value, 25, 24 + WIDTH * count)
  end
  held = min(held, MOST_HELD)
  if held == 0 then
    since = pack('<I5', 0)
  elseif not since then
    since = pack('<I5', floor(bucket.moment / 1000000))
  end
  local entry = owner .. pack('<I6I6I7', sequence, held, bucket.moment + life) .. since
  local is_reset = false
  if WIDTH > 32 then
    -- The numbers never fall, so that no cost is charged twice. But an owner that reports 0 has forgotten its sum.
    local goes_on = place and to > 0
    entry = entry .. pack('<I8', goes_on and max(to, charged) or to)
    if WIDTH == 48 then
      resets = min(resets, EXACT)
      is_reset = resets > known
      entry = entry .. pack('<I8', goes_on and max(resets, known) or resets)
      if is_reset then charged = at_reset end
    end
  end
  bucket.count, bucket.changed = count + 1, true
  if settles then
    bucket.value = pack('<I8I8I8', 0, 0, 0) .. sub(rest, 1, WIDTH * live) .. entry .. sub(rest, WIDTH * live + 1)
    bucket.value, bucket.count = drop_old_timed(bucket.value, bucket.count, live)
    bucket.live = live
  else
    bucket.value = pack('<I8I8I8', 0, 0, 0) .. entry .. rest
    bucket.live, bucket.held = live + 1, bucket.held + held
    if is_timed then bucket.timed = bucket.timed + 1 end
  end
  return max(to - charged, 0), is_reset
end

-- Returns the entries to store, and until when. Until the last timed hold ends, its end takes the place of the moment. Then
-- returns this end, and how much all timed holds hold.
local function close_entries(bucket)
  local value, added = bucket.value, bucket.added
  local head = pack('<BI7I8I2I2I4', 1, bucket.held, bucket.moment, bucket.live, bucket.timed, 0)
  local last, all = timed_holds(bucket)
  local stored_until = kept_until(max(bucket.moment, last or 0))
  if added == 0 then return head .. sub(value, 25), stored_until, last, all end
  local held, since = unpack('<I6', value, 39), sub(value, 52, 56)
  if held == 0 then since = pack('<I5', floor(bucket.moment / 1000000)) end
  return head .. sub(value, 25, 38) .. pack('<I6', held + added) .. sub(value, 45, 51) .. since .. sub(value, 57),
    stored_until, last, all
end

-- Returns the part of the entries for the reply: the sum, and the entry of the calling owner, as they were found.
local function digest_entries(bucket)
  return pack('<BI7I8I8', 2, bucket.before, bucket.moment, bucket.is_live) .. bucket.own
end
