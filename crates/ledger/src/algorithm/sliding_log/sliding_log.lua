-- Steps a sliding log: the twin of mod.rs, in doubles that hold every integer below 2^53 exactly. A stored log is
-- integers of eight bytes: the sum, the number of pairs, the longest recent window, and until when that window matters.
-- The pairs follow, oldest first, each a moment and the running total up to it, modulo TOTALS. No request reads the
-- whole log: a pair is found by bisection, and bytes are copied in one piece.

local EXACT = 9007199254740991
local TOTALS = 4503599627370496
local MOST_AHEAD = 10000000
local SHORTEST, LONGEST = 1000000, 31622400000000
local MOST_PAIRS, EXCERPT = 20000, 16
local LONGEST_EXCERPT = 256
local floor, max, min = math.floor, math.max, math.min
local pack, unpack, sub = struct.pack, struct.unpack, string.sub

local function difference(total, before)
  if total < before then return total - before + TOTALS end
  return total - before
end

-- Reads a stored log. Returns the number of pairs, the sum, the longest recent window, until when that matters, the last
-- moment and the total up to it. Returns false for an invalid value.
local function read(value)
  local count = (#value - 32) / 16
  if count < 1 or count ~= floor(count) then return false end
  local sum, exact, window, till, first = unpack('<I8I8I8I8I8', value)
  local last, total = unpack('<I8I8', value, #value - 15)
  if exact ~= count or sum >= TOTALS or total >= TOTALS or first > last or last > EXACT or till > EXACT
    or window < SHORTEST or window > LONGEST then
    return false
  end
  return count, sum, window, till, last, total
end

-- Returns how many pairs are not later than a moment. Usually these are few, so the search begins at the first pair.
local function count_until(value, count, moment)
  local low, high = 0, 1
  while high <= count and unpack('<I8', value, 17 + 16 * high) <= moment do low, high = high, 2 * high end
  high = min(high, count + 1)
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if unpack('<I8', value, 17 + 16 * middle) <= moment then low = middle else high = middle end
  end
  return low
end

-- Returns the sum of the grants after the first `gone` pairs.
local function sum_after(bucket, gone)
  if gone == 0 then return bucket.sum end
  return difference(bucket.total, (unpack('<I8', bucket.value, 25 + 16 * gone)))
end

-- Gives the bucket a single grant of `sum`, now.
local function spend_now(limit, bucket, sum)
  local now, window = limit.now, limit.window
  bucket[1] = sum
  bucket.value, bucket.count, bucket.gone = pack('<I8I8I8I8I8I8', sum, 1, window, now + window, now, sum), 1, 0
  bucket.before, bucket.sum, bucket.last, bucket.total = sum, sum, now, sum
  bucket.window, bucket.till = window, now + window
end

return {
  new = function(numbers, at, now)
    local capacity, window, after = unpack('<I8I8', numbers, at)
    return {capacity = capacity, window = window, now = now}, after
  end,

  -- A corrected log must be written. Otherwise every read would move its grants to the present.
  open = function(limit, value, now)
    local bucket = {
      0, limit = limit, found = value, changed = false, value = '', count = 0, gone = 0, before = 0, sum = 0, last = 0,
      total = 0, window = 0, till = 0, added = 0, dearest = 0,
    }
    if not value then return bucket end
    local count, sum, window, till, last, total = read(value)
    if not count then
      spend_now(limit, bucket, limit.capacity)
      bucket.invalid = true
    elseif last - now > MOST_AHEAD then
      spend_now(limit, bucket, sum)
      bucket.moved, bucket.changed = true, true
    else
      -- After the clock was set back, the time of the last grant is used, so that no grant counts again.
      local gone = count_until(value, count, max(last, now) - limit.window)
      bucket.value, bucket.count, bucket.gone, bucket.sum = value, count, gone, sum
      bucket.last, bucket.total, bucket.window, bucket.till = last, total, window, till
      bucket.before = sum_after(bucket, gone)
      bucket[1] = bucket.before
    end
    return bucket
  end,

  -- How many times the bucket can pay. Notes the largest cost, for which the reply may have to tell a wait.
  most = function(limit, bucket, cost)
    if cost > bucket.dearest and cost <= limit.capacity then bucket.dearest = cost end
    return floor((limit.capacity - bucket[1]) / cost)
  end,

  charge = function(limit, bucket, cost)
    bucket[1] = bucket[1] + cost
    bucket.added = bucket.added + cost
  end,

  -- Returns the value to store, and until when.
  close = function(limit, bucket)
    local value, count, added, at = bucket.value, bucket.count, bucket.added, max(bucket.last, limit.now)
    local from, sum, window, till = bucket.gone, bucket.before, limit.window, at + limit.window
    if bucket.window > window and at < bucket.till then
      local longer = count_until(value, count, at - bucket.window)
      window, till = bucket.window, bucket.till
      if sum_after(bucket, longer) + added < TOTALS then from, sum = longer, sum_after(bucket, longer) end
    end
    local older = count - from
    if count > 0 and bucket.last == at then older = older - 1 end
    if older + 1 > MOST_PAIRS then
      -- The sum stays: the amounts of removed pairs count as part of the next pair.
      from, older = from + older + 1 - MOST_PAIRS, MOST_PAIRS - 1
    end
    local total = bucket.total + added
    if total >= TOTALS then total = total - TOTALS end
    local head, pair = pack('<I8I8I8I8', sum + added, older + 1, window, till), pack('<I8I8', at, total)
    if older > 0 then head = head .. sub(value, 33 + 16 * from, 32 + 16 * (from + older)) end
    return head .. pair, at + window
  end,

  -- Undoes a charge at the moment of its grant. Later grants stay. Returns the value to store, and until when: long
  -- enough for a gateway with a longer window.
  undo = function(limit, bucket, cost, charged)
    local value, count, window, till = bucket.value, bucket.count, bucket.window, bucket.till
    local index = count_until(value, count, charged)
    if index < 1 or unpack('<I8', value, 17 + 16 * index) ~= charged then return false end
    local before = difference(bucket.total, bucket.sum)
    if index > 1 then before = unpack('<I8', value, 9 + 16 * index) end
    if difference((unpack('<I8', value, 25 + 16 * index)), before) < cost then return false end
    local parts = {pack('<I8I8I8I8', bucket.sum - cost, count, window, till), sub(value, 33, 24 + 16 * index)}
    for later = index, count do
      local total = difference((unpack('<I8', value, 25 + 16 * later)), cost)
      parts[#parts + 1] = pack('<I8', total)
      if later < count then parts[#parts + 1] = sub(value, 33 + 16 * later, 40 + 16 * later) end
    end
    return table.concat(parts), bucket.last + max(limit.window, window)
  end,

  -- Gives back the last grants first. The log then ends with the first pair after which at most `given` was granted.
  give_back = function(value, amount)
    local count, sum, window, till, last, total = read(value)
    if not count then return false end
    local given, low, high = min(amount, sum), 1, count
    while low < high do
      local middle = floor((low + high) / 2)
      if difference(total, (unpack('<I8', value, 25 + 16 * middle))) > given then low = middle + 1 else high = middle end
    end
    return pack('<I8I8I8I8', sum - given, low, window, till) .. sub(value, 33, 24 + 16 * low)
      .. pack('<I8', difference(total, given))
  end,

  -- Returns the part of a long log for the reply: the last pair, and at least EXCERPT first pairs. These reach to the
  -- end of the longest wait of this call, but are at most LONGEST_EXCERPT.
  digest = function(limit, bucket, value)
    if bucket.moved then return sub(value, 1, 8) .. pack('<I8', 1) .. sub(value, 17, 32) .. sub(value, -16) end
    local count, gone = bucket.count, bucket.gone
    if count <= EXCERPT + 1 then return value end
    -- `room` is the smallest sum to which the log must fall for a request of this call: the dearest, after all grants.
    local first, room = gone + EXCERPT, max(0, limit.capacity - bucket.dearest - bucket.added)
    local function stays(index)
      return difference(bucket.total, (unpack('<I8', value, 25 + 16 * index))) > room
    end
    if bucket.dearest > 0 and bucket.before > room and first < count and stays(first) then
      local last = count
      while last - first > 1 do
        local middle = floor((first + last) / 2)
        if stays(middle) then first = middle else last = middle end
      end
      first = min(last, gone + LONGEST_EXCERPT)
    end
    if first >= count - 1 then
      -- A log has at least one pair.
      gone = min(gone, count - 1)
      return pack('<I8I8I8I8', sum_after(bucket, gone), count - gone, bucket.window, bucket.till)
        .. sub(value, 33 + 16 * gone)
    end
    return pack('<I8I8I8I8', bucket.before, first - gone, bucket.window, bucket.till)
      .. sub(value, 33 + 16 * gone, 32 + 16 * first) .. sub(value, -16)
  end,
}
