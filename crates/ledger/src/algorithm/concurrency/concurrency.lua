-- Steps the slots of a limit: the twin of mod.rs, on the functions of owner_entries.lua. A bucket is the entries of its owners.

return {
  new = function(numbers, at, now)
    local capacity, after = unpack('<I8', numbers, at)
    return {capacity = capacity, now = now}, after
  end,

  open = function(limit, value, now)
    local bucket = {limit = limit, found = value, changed = false}
    if not open_entries(bucket, value, now) then
      -- The owner 0 holds all of an invalid bucket. Live owners report within 2 s, and after 7 s only their reports count.
      bucket.value = pack('<I8I8I8I8I6I6I7I5', 0, 0, 0, 0, 0, limit.capacity, now + LIFE, floor(now / 1000000))
      bucket.count, bucket.live, bucket.timed, bucket.invalid = 1, 1, 0, true
      bucket.held, bucket.before = limit.capacity, limit.capacity
    end
    return bucket
  end,

  accept = function(limit, bucket, owner, sequence, held, from, to, known, resets, at_reset, life)
    return accept_report(bucket, owner, sequence, held, 0, 0, 0, 0, 0, life) and true
  end,

  -- How many times the bucket can pay the cost.
  most = function(limit, bucket, cost)
    if bucket.count == 0 then return 0 end
    return floor((limit.capacity - bucket.held) / cost)
  end,

  -- Adds to what the owner of the last report holds.
  charge = function(limit, bucket, cost)
    bucket.held, bucket.added = bucket.held + cost, bucket.added + cost
  end,

  -- Returns the value after a report, if no entry has ended, the owner has an entry, and the value need not be kept for
  -- longer. Otherwise returns false, and `open` and `accept` handle the report. Values with a single entry often begin
  -- with the same bytes, because their buckets were together in an earlier call.
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

  close = function(limit, bucket)
    return close_entries(bucket)
  end,

  -- Only owners give back slots.
  give_back = function(value)
    return read_entries(value) and value
  end,

  digest = function(limit, bucket)
    return digest_entries(bucket)
  end,
}
