-- Steps the home of a limit: the twin of mod.rs and region_entries.rs in the folder `home`. `spent_twin` is the twin of the token
-- bucket or fixed window, and `spent` is its bucket. A stored value has the 24 bytes of that bucket, and then 64 bytes for each region.

local EXACT = 9007199254740991
local HOUR, PAUSE, PORTIONS, MOST_ENTRIES = 3600000000, 100000, 2, 64
local LEASE, RETURN = 1, 2
local FORGOTTEN = 0
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack, unpack, sub = struct.pack, struct.unpack, string.sub

-- Returns the sum or the product, up to the largest exact number.
local function plus(a, b) return min(a + b, EXACT) end
local function price(limit, amount) return min(amount * (limit.unit or 1), EXACT) end

-- Returns the entries of a value, or false if they are invalid.
local function read_entries(value)
  local count, entries = (#value - 24) / 64, {}
  if count < 0 or count > MOST_ENTRIES or count ~= floor(count) then return false end
  for index = 1, count do
    local region, number, tag, kind, given, period, ends, held, short_until =
      unpack('<I8I8I8BI7I8I8I8I8', value, 64 * index - 39)
    if kind ~= LEASE and kind ~= RETURN or max(region, number, tag, given, period, ends, held, short_until) > EXACT then
      return false
    end
    entries[index] = {
      region = region, number = number, tag = tag, kind = kind, given = given, period = period, ends = ends, held = held,
      short_until = short_until,
    }
  end
  return entries
end

-- Returns what can lie in all purses.
local function held_of(entries)
  local held = 0
  for _, entry in ipairs(entries) do held = plus(held, entry.held) end
  return held
end

-- A bucket that cannot be read has spent everything. What was held of purses that have ended is spent.
local function open(limit, value, now)
  local bucket = {limit = limit, found = value, changed = false, entries = {}}
  bucket.spent = spent_twin.open(limit, value and sub(value, 1, 24), now)
  local entries = value and read_entries(value)
  if value and (not entries or bucket.spent.invalid) then
    bucket.spent, bucket.invalid = spent_twin.open(limit, '', now), true
    return bucket
  end
  if bucket.spent.changed then bucket.changed = true end
  local ended = 0
  for _, entry in ipairs(entries or {}) do
    if entry.ends <= now then ended, entry.held = plus(ended, entry.held), 0 end
    if entry.ends + HOUR > now then bucket.entries[#bucket.entries + 1] = entry end
  end
  bucket.spent[1] = plus(bucket.spent[1], price(limit, ended))
  return bucket
end

-- Returns what can be given, in thousandths, beside what is spent and what is held.
local function rest_of(limit, bucket, held)
  if not limit.unit then return max(limit.capacity - bucket.spent[1], 0) end
  return floor(max(limit.capacity - plus(price(limit, held), bucket.spent[1]), 0) / limit.unit)
end

-- Returns the beginning of the period, and its end or that of a hold that begins now.
local function period_of(limit, bucket, now)
  if limit.unit then return 0, now + limit.life end
  return bucket.spent[2], bucket.spent[3]
end

-- Spends what has left the purse since the region's last word. Returns what is still held.
local function settle(limit, bucket, left, held)
  if not limit.unit then return 0 end
  left = min(left, EXACT)
  bucket.spent[1] = plus(bucket.spent[1], price(limit, max(held - left, 0)))
  return left
end

-- Debits a lease. Returns what is given, what is held, and when home could give what was asked for.
local function lease(limit, bucket, asked, least, left, held, others, now)
  held = settle(limit, bucket, left, held)
  local rest = rest_of(limit, bucket, plus(others, held))
  local given = min(asked, rest)
  if not limit.unit then
    local portion = floor(rest / (PORTIONS * limit.regions))
    given = min(given, max(least, portion - portion % 1000))
  end
  if given < least then given = 0 end
  if not limit.unit then
    bucket.spent[1] = plus(bucket.spent[1], given)
    return given, 0, given == 0 and max(bucket.spent[3] - now, 0) or 0
  end
  local again = 0
  if given == 0 then
    local needed = plus(plus(price(limit, least), price(limit, plus(others, held))), bucket.spent[1])
    again = max(bucket.spent[2] - now, 0) + ceil(max(needed - limit.capacity, 0) / limit.refill)
    again = min(max(again, PAUSE), floor(EXACT / 2))
  elseif given < asked then
    again = PAUSE
  end
  return given, plus(held, given), again
end

-- Takes back what a purse has given up. Returns what is still held.
local function take_back(limit, bucket, amount, left, period, held, is_known)
  if limit.unit then return settle(limit, bucket, left, max(held - amount, 0)) end
  if is_known and period == bucket.spent[2] then bucket.spent[1] = max(bucket.spent[1] - amount, 0) end
  return 0
end

-- Returns the place of the entry of a region.
local function place_of(entries, region)
  for index, entry in ipairs(entries) do
    if entry.region == region then return index end
  end
  return false
end

-- Makes room for a new entry: forgets those that end first, with the smallest numbers first, of which nothing is held. Returns
-- whether there is room.
local function make_room(entries)
  local free = 0
  for _, entry in ipairs(entries) do
    if entry.held == 0 and entry.region ~= FORGOTTEN then free = free + 1 end
  end
  if #entries >= MOST_ENTRIES and free < (place_of(entries, FORGOTTEN) and 1 or 2) then return false end
  while #entries >= MOST_ENTRIES do
    local first
    for index, entry in ipairs(entries) do
      local other = entries[first]
      if entry.held == 0 and entry.region ~= FORGOTTEN
        and (not first or entry.ends < other.ends or entry.ends == other.ends and entry.number < other.number) then
        first = index
      end
    end
    local old = table.remove(entries, first)
    local place = place_of(entries, FORGOTTEN)
    local before = place and entries[place] or old
    entries[place or #entries + 1] = {
      region = FORGOTTEN, number = max(old.number, before.number), tag = 0, kind = LEASE, given = 0, period = 0,
      ends = max(old.ends, before.ends), held = 0, short_until = 0,
    }
  end
  return true
end

-- Returns the sum of the raises of a bucket, and how long it holds: until the first of them ends.
local function raise_of(bucket, now)
  local running, sum, first = bucket.running or '', 0, EXACT
  for at = 9, #running, 24 do
    local amount, ends = unpack('<I8I8', running, at)
    sum, first = plus(sum, amount), min(first, ends)
  end
  return sum, sum > 0 and first - now or 0
end

local function answer(bucket, entry, ends, rest, now)
  return pack('<I8I8I8I8I8I8I8I8I8I8I8', 1, entry.number, entry.tag, entry.kind, entry.given, entry.period, max(ends - now, 0),
    max(entry.short_until - now, 0), rest, raise_of(bucket, now))
end

return {
  -- The limit is that of `spent_twin`. The number of regions and the time for which a purse is held follow its settings.
  new = function(numbers, at, now)
    local limit
    limit, at = spent_twin.new(numbers, at, now)
    limit.regions, limit.life, at = unpack('<I8I8', numbers, at)
    return limit, at
  end,

  open = open,

  -- Hears a word of a region. Returns the answer.
  hear = function(limit, bucket, text, at, now)
    local region, number, tag, kind, amount, least, left, period = unpack('<I8I8I8I8I8I8I8I8', text, at)
    local entries = bucket.entries
    local place = place_of(entries, region)
    local last = place and entries[place]
    if last and number <= last.number then
      if number == last.number and tag == last.tag then
        -- A period that was not believed, or has become shorter, ends earlier than at the first time.
        local begin, ends = period_of(limit, bucket, now)
        return answer(bucket, last, min(last.ends, ends), rest_of(limit, bucket, held_of(entries)), now)
      end
      return pack('<I8I8I8', 2, last.number, last.tag)
    end
    local forgotten = not last and place_of(entries, FORGOTTEN)
    if forgotten and number <= entries[forgotten].number then return pack('<I8I8I8', 2, entries[forgotten].number, 0) end
    if not last and not make_room(entries) then
      local begin, ends = period_of(limit, bucket, now)
      local none = {number = number, tag = tag, kind = kind, given = 0, period = begin, ends = ends, short_until = ends}
      return answer(bucket, none, ends, 0, now)
    end
    local before = last and last.held or 0
    local others, entry = held_of(entries) - before, {region = region, number = number, tag = tag, kind = kind, given = 0}
    local again = 0
    if kind == LEASE then
      entry.given, entry.held, again = lease(limit, bucket, amount, least, left, before, others, now)
    else
      entry.held = take_back(limit, bucket, amount, left, period, before, last)
    end
    entry.period, entry.ends = period_of(limit, bucket, now)
    entry.short_until = now + again
    entries[place or #entries + 1], bucket.changed = entry, true
    return answer(bucket, entry, entry.ends, rest_of(limit, bucket, plus(others, entry.held)), now)
  end,

  -- How many times the bucket could pay the cost by itself.
  most = function(limit, bucket, cost)
    local room = limit.capacity - bucket.spent[1] - price(limit, held_of(bucket.entries))
    return floor(room / (cost * (limit.unit or 1)))
  end,

  charge = function(limit, bucket, cost)
    bucket.spent[1] = bucket.spent[1] + cost * (limit.unit or 1)
  end,

  close = function(limit, bucket)
    local value, kept_until = spent_twin.close(limit, bucket.spent)
    kept_until = min(kept_until, EXACT)
    local parts, last, held = {value}, false, held_of(bucket.entries)
    for index, entry in ipairs(bucket.entries) do
      parts[index + 1] = pack('<I8I8I8BI7I8I8I8I8', entry.region, entry.number, entry.tag, entry.kind, entry.given, entry.period,
        entry.ends, entry.held, entry.short_until)
      kept_until = max(kept_until, entry.ends + HOUR)
      if entry.held > 0 then last = max(last or 0, entry.ends) end
    end
    if last and limit.unit then
      kept_until = max(kept_until, last + ceil(plus(price(limit, held), bucket.spent[1]) / limit.refill))
    end
    return table.concat(parts), min(kept_until, EXACT)
  end,

  give_back = function(value, amount)
    if #value < 24 or not read_entries(value) then return false end
    local spent = spent_twin.give_back(sub(value, 1, 24), amount)
    return spent and spent .. sub(value, 25)
  end,
}
