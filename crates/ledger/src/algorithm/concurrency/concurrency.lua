-- Steps the slots of a limit: the twin of mod.rs, in doubles that hold every integer below 2^53 exactly.
-- A bucket is the sum held, and the entries of its owners, packed as owner_entries.rs describes: that of the last speaker first, those
-- whose time is over last.

local EXACT = 9007199254740991
local MOST_AHEAD = 10000000
local LIFE, KEPT, MINUTE = 7000000, 600000000, 60000000
local MOST_OWNERS, MOST_HELD = 1024, 2^43 - 1
local floor, max, min = math.floor, math.max, math.min
local pack, unpack, sub, find = struct.pack, struct.unpack, string.sub, string.find

-- Of a stored value: how many entries it has, the sum held, the bucket's moment, how many entries are live; false for a value that
-- cannot be that.
local function read(value)
  local count = (#value - 24) / 32
  if count < 1 or count > MOST_OWNERS or count ~= floor(count) then return false end
  local form, sum, moment, live = unpack('<BI7I8I8', value)
  if form ~= 1 or sum > EXACT or moment > EXACT or live > count then return false end
  return count, sum, moment, live
end

-- Until when an entry counts.
local function ends(value, index)
  return (unpack('<I7', value, 32 * index + 13))
end

-- Until when a server keeps a value whose bucket has this moment: the same in all writes of a minute.
local function kept_until(moment)
  return floor(moment / MINUTE) * MINUTE + MINUTE + KEPT
end

-- The same entries, each ending so much earlier.
local function moved(value, count, by)
  local parts = {sub(value, 1, 24)}
  for index = 1, count do
    local first = 32 * index
    parts[index + 1] = sub(value, first - 7, first + 12) .. pack('<I7', max(ends(value, index) - by, 0))
      .. sub(value, first + 20, first + 24)
  end
  return table.concat(parts)
end

return {
  -- The limit.
  new = function(numbers, at, now)
    local capacity, after = unpack('<I8', numbers, at)
    return {capacity = capacity, now = now}, after
  end,

  open = function(limit, value, now)
    local bucket = {
      0, limit = limit, found = value, changed = false, value = '', count = 0, live = 0, moment = now, before = 0, added = 0,
      own = '', is_live = 0,
    }
    if not value then return bucket end
    local count, sum, moment, live = read(value)
    if not count then
      -- Nobody holds everything: owners that live say within 2 s what they hold, and after 7 s only that counts.
      value = pack('<I8I8I8I8I6I6I7I5', 0, 0, 0, 0, 0, limit.capacity, now + LIFE, floor(now / 1000000))
      bucket.value, bucket.count, bucket.live, bucket.invalid = value, 1, 1, true
      bucket[1], bucket.before = limit.capacity, limit.capacity
      return bucket
    end
    bucket.stored_until = kept_until(moment)
    if moment - now > MOST_AHEAD then
      value, moment, bucket.changed = moved(value, count, moment - now), now, true
    end
    if now > moment then moment = now end
    while live > 0 and ends(value, live) <= moment do
      sum = max(sum - unpack('<I6', value, 32 * live + 7), 0)
      live = live - 1
    end
    if live == 0 then sum = 0 end
    local kept = count
    while kept > live and ends(value, kept) + KEPT - LIFE <= moment do kept = kept - 1 end
    if kept < count then value = sub(value, 1, 24 + 32 * kept) end
    bucket.value, bucket.count, bucket.live, bucket.moment, bucket[1], bucket.before = value, kept, live, moment, sum, sum
    return bucket
  end,

  -- Accepts a report, whose entry is then the first one. False, and nothing changes, if it is not newer than that owner's last one.
  accept = function(limit, bucket, owner, sequence, held)
    local value, count, live, since = bucket.value, bucket.count, bucket.live, false
    local place = find(value, owner, 25, true)
    while place and (place - 25) % 32 ~= 0 do place = find(value, owner, place + 1, true) end
    local rest
    if place then
      local last, before = unpack('<I6I6', value, place + 8)
      bucket.own = sub(value, place, place + 31)
      if place < 25 + 32 * live then
        bucket.is_live = 1
        if sequence > last then
          bucket[1] = max(bucket[1] - before, 0)
          live = live - 1
          if before > 0 then since = sub(value, place + 27, place + 31) end
        end
      end
      if sequence <= last then return false end
      rest = sub(value, 25, place - 1) .. sub(value, place + 32)
      count = count - 1
    else
      if count >= MOST_OWNERS then
        if live >= MOST_OWNERS then
          bucket.is_live = MOST_OWNERS
          return false
        end
        count = live
      end
      rest = sub(value, 25, 24 + 32 * count)
    end
    held = min(held, MOST_HELD)
    if held == 0 then
      since = pack('<I5', 0)
    elseif not since then
      since = pack('<I5', floor(bucket.moment / 1000000))
    end
    bucket.value = pack('<I8I8I8', 0, 0, 0) .. owner .. pack('<I6I6I7', sequence, held, bucket.moment + LIFE) .. since .. rest
    bucket.count, bucket.live, bucket.changed, bucket[1] = count + 1, live + 1, true, bucket[1] + held
    return true
  end,

  -- How many times it could pay.
  most = function(limit, bucket, cost)
    if bucket.count == 0 then return 0 end
    return floor((limit.capacity - bucket[1]) / cost)
  end,

  -- Adds to what the last speaker holds.
  charge = function(limit, bucket, cost)
    bucket[1], bucket.added = bucket[1] + cost, bucket.added + cost
  end,

  -- The value after a report of an owner, if it is kept as long as the stored one, and if all its entries count, that of the
  -- owner too. Otherwise false: then `open` and `accept` do it. Buckets that are reported in one call were often reported in
  -- one call before, so values with a single entry often begin with the same bytes.
  renew = function(limit, value, owner, sequence, held)
    local size, now = #value, limit.now
    if size == 56 and held == limit.held and sub(value, 1, 51) == limit.start then return limit.renewed .. sub(value, 52) end
    if size < 56 or held == 0 or held > MOST_HELD then return false end
    local form, sum, moment, live = unpack('<BI7I8I8', value)
    local place = find(value, owner, 25, true)
    if form ~= 1 or sum > EXACT or moment > now or kept_until(moment) ~= kept_until(now) or live > MOST_OWNERS
      or size ~= 24 + 32 * live or ends(value, live) <= now or not place or (place - 25) % 32 ~= 0 then return false end
    local last, before = unpack('<I6I6', value, place + 8)
    if last >= sequence or before == 0 then return false end
    if held ~= limit.held then
      limit.held, limit.own, limit.start = held, owner .. pack('<I6I6I7', sequence, held, now + LIFE), nil
    end
    local renewed = pack('<BI7I8I8', 1, max(sum - before, 0) + held, now, live) .. limit.own
    if live == 1 then limit.start, limit.renewed = sub(value, 1, 51), renewed end
    return renewed .. sub(value, place + 27, place + 31) .. sub(value, 25, place - 1) .. sub(value, place + 32)
  end,

  -- What to store, and until when: entries are kept for ten minutes after their owner's last report.
  close = function(limit, bucket)
    local value, added = bucket.value, bucket.added
    local head = pack('<BI7I8I8', 1, bucket[1], bucket.moment, bucket.live)
    if added == 0 then return head .. sub(value, 25), kept_until(bucket.moment) end
    local held, since = unpack('<I6', value, 39), sub(value, 52, 56)
    if held == 0 then since = pack('<I5', floor(bucket.moment / 1000000)) end
    return head .. sub(value, 25, 38) .. pack('<I6', held + added) .. sub(value, 45, 51) .. since .. sub(value, 57),
      kept_until(bucket.moment)
  end,

  -- What is held is what the owners say.
  give_back = function(value)
    return read(value) and value
  end,

  -- What the reply has of the entries: the sum, and that of the owner that calls, as they were found.
  digest = function(limit, bucket)
    return pack('<BI7I8I8', 2, bucket.before, bucket.moment, bucket.is_live) .. bucket.own
  end,
}
