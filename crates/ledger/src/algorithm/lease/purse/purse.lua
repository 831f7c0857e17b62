-- Steps a purse: the twin of mod.rs and stored_purse.rs, which describes the stored value. In a bucket, `kind` is that of the word
-- for whose answer the purse waits, 0 for none. `share_twin` is the twin of the token bucket or window of the region's share, and
-- `share` is its bucket. It is `false` for a purse that does not count what its region leases. `raised` and `raised_until` are of the
-- raises at home: they are only kept, to be shown.

local EXACT = 9007199254740991
local LEASE, RETURN = 1, 2
local MOST_TRIES, WAITS_FOR_ANSWER = 16, 10
local floor, max, min = math.floor, math.max, math.min
local pack, unpack, sub = struct.pack, struct.unpack, string.sub

local function plus(a, b) return min(a + b, EXACT) end
-- Returns an amount in units of the share.
local function price(limit, amount) return min(amount * (limit.share.unit or 1), EXACT) end

-- Returns the purse of a value, or false if the value is invalid.
local function read(value)
  if #value < 96 then return false end
  -- Forms 2 and 4 count, forms 3 and 4 have a raise.
  local form, kind, tries, rest, number, left, period, ends, short_until, touched, trip, since_mark, left_at_home, heard, undone_since =
    unpack('<BBBI5I8I8I8I8I8I8I8I8I8I8I8', value)
  local shared = (form == 2 or form == 4) and 32 or 0
  local words = #value - shared - (form > 2 and 16 or 0)
  if words ~= (kind == 0 and 96 or 144) or form < 1 or form > 4 or rest ~= 0 or tries > MOST_TRIES or kind == 0 and tries ~= 0
    or kind > RETURN
    or max(number, left, period, ends, short_until, touched, trip, since_mark, left_at_home, heard, undone_since) > EXACT then
    return false
  end
  local purse = {
    kind = kind, tries = tries, number = number, left = left, period = period, ends = ends, short_until = short_until,
    touched = touched, trip = trip, since_mark = since_mark, left_at_home = left_at_home, heard = heard,
    undone_since = undone_since, stored_share = '', debt = 0, raised = 0, raised_until = 0,
  }
  if shared > 0 then
    local spent, first, last, debt = unpack('<I8I8I8I8', value, 97)
    if max(spent, first, last, debt) > EXACT then return false end
    purse.stored_share, purse.debt = sub(value, 97, 120), debt
  end
  if form > 2 then
    purse.raised, purse.raised_until = unpack('<I8I8', value, 97 + shared)
    if purse.raised < 1 or max(purse.raised, purse.raised_until) > EXACT then return false end
  end
  if kind == 0 then return purse end
  local tag, amount, least, left_then, mark, till = unpack('<I8I8I8I8I8I8', value, #value - 47)
  if max(tag, amount, least, left_then, mark, till) > EXACT then return false end
  purse.tag, purse.amount, purse.least, purse.left_then, purse.mark, purse.till = tag, amount, least, left_then, mark, till
  return purse
end

local function is_short(limit, purse, now)
  return now < purse.short_until and purse.short_until - now <= limit.return_after
end

-- Returns whether home is known to be short of what a request of this cost lacks. If it lacks nothing, more is not asked for.
local function is_short_of(limit, purse, cost, now)
  return is_short(limit, purse, now) and (cost <= purse.left or cost - purse.left > purse.left_at_home)
end

-- Returns the level below which a region asks home in the background.
local function reorder_level(limit, purse, cost)
  local least, two_trips = max(cost, floor(limit.largest / 8)), plus(purse.trip, purse.trip)
  if two_trips > limit.largest then return least end
  return max(least, min(two_trips, floor(limit.largest / 2)))
end

local function send(purse)
  purse.changed = true
  return pack('<I8I8I8I8I8I8I8I8I8I8', 1, purse.number, purse.tag, purse.kind, purse.amount, purse.least, purse.left_then,
    purse.period, purse.mark, purse.till)
end

-- Makes the purse wait for a new word.
local function new_word(limit, purse, kind, tag, amount, least, now)
  purse.number, purse.since_mark = purse.number + 1, 0
  -- Home takes what has left the purse of a token bucket until now for spent.
  if purse.period == 0 then purse.undone_since = max(now, purse.touched) end
  purse.kind, purse.tag, purse.amount, purse.least, purse.left_then = kind, tag, amount, least, purse.left
  purse.mark, purse.till, purse.tries = now, now + limit.timeout, 0
  return send(purse)
end

-- Marks the purse again for the same word.
local function again(limit, purse, now)
  purse.tries = min(purse.tries + 1, MOST_TRIES)
  local wait = min(limit.timeout * 2 ^ purse.tries, max(limit.return_after, limit.timeout))
  purse.mark, purse.till = now, now + wait
  return send(purse)
end

local NOTHING = pack('<I8', 0)

local function mark(limit, purse, cost, tag, now)
  if purse.kind == LEASE then
    if purse.mark <= now and now - purse.mark < limit.timeout then return NOTHING end
    return again(limit, purse, now)
  end
  local missing = max(max(limit.largest, cost) - purse.left, 0)
  if missing == 0 or is_short_of(limit, purse, cost, now) or purse.left >= reorder_level(limit, purse, cost) then return NOTHING end
  local least = cost > purse.left and cost - purse.left or cost
  return new_word(limit, purse, LEASE, tag, missing, min(max(least, 1), missing), now)
end

local function resend(limit, purse, number, tag, now)
  if purse.kind == 0 or purse.number ~= number or purse.tag ~= tag then return NOTHING end
  if purse.mark <= now and now < purse.till then return NOTHING end
  return again(limit, purse, now)
end

local function surplus(limit, purse, tag, idle, now)
  -- Nobody may know of the word: the reply of the act that wrote it was lost.
  if purse.kind == RETURN and not (purse.mark <= now and now < purse.till) then return again(limit, purse, now) end
  -- What a single large request has leased, and has not spent, goes back from a purse in use, too.
  local is_touched = purse.touched <= now and now - purse.touched < idle
  local left = is_touched and min(purse.left, limit.largest) or 0
  local amount = purse.left - left
  if amount == 0 or purse.kind ~= 0 then return NOTHING end
  purse.left = left
  return new_word(limit, purse, RETURN, tag, amount, 0, now)
end

-- Takes an answer of home, which begins at `at`. Returns whether the purse has waited for it.
local function credit(limit, purse, text, at, marked, wanted, now)
  marked = min(marked, now)
  if unpack('<I8', text, at) == 2 then
    local number, tag = unpack('<I8I8', text, at + 8)
    if purse.kind == 0 or purse.number > number or purse.number == number and purse.tag == tag then return false end
    purse.number, purse.kind, purse.tries = min(number, EXACT - 1), 0, 0
    return true
  end
  local number, tag, kind, given, period, remains, again_after, rest, raised, raised_for =
    unpack('<I8I8I8I8I8I8I8I8I8I8', text, at + 8)
  if purse.kind == 0 or purse.number ~= number or purse.tag ~= tag then return false end
  purse.kind, purse.tries, purse.left_at_home, purse.heard = 0, 0, rest, min(marked, EXACT)
  purse.raised, purse.raised_until = raised, raised > 0 and plus(marked, raised_for) or 0
  local share = purse.share
  if kind == RETURN then
    -- What was leased of a token bucket has been refilled, or soon will be.
    if share and not limit.share.unit and share[2] <= purse.mark then share[1] = max(share[1] - purse.amount, 0) end
    return true
  end
  local spent = plus(purse.since_mark, wanted)
  purse.trip = max(spent, floor(plus(purse.trip, spent) / 2))
  purse.short_until = min(plus(marked, again_after), now + limit.return_after)
  if given > 0 then
    if purse.period ~= period then purse.left, purse.undone_since = 0, max(now, purse.touched) end
    local paid = share and min(purse.debt, given) or 0
    purse.left = plus(purse.left, given - paid)
    purse.period, purse.ends, purse.touched = period, plus(marked, remains), now
    -- What the lease pays was counted when it was spent.
    if share then
      local counted, unit = given - paid, limit.share.unit
      -- The share of a token bucket is empty at most.
      if unit then counted = min(counted, floor(max(limit.share.capacity - share[1], 0) / unit)) end
      share[1], purse.debt = plus(share[1], price(limit, counted)), purse.debt - paid
    end
  end
  return true
end

return {
  -- Raises are at home.
  unraised = true,

  -- Reads the largest lease, the time in which home should answer, the time after which an untouched purse gives back, and the
  -- largest cost that fits the limit. With a share, reads whether it is spent, because home gives no answer, or must not be, and its
  -- settings.
  new = function(numbers, at, now)
    local largest, timeout, return_after, ceiling, after = unpack('<I8I8I8I8', numbers, at)
    local limit =
      {largest = largest, timeout = timeout, return_after = return_after, capacity = ceiling}
    if share_twin then
      local code = unpack('<I8', numbers, after)
      limit.is_spent, limit.is_unspent = code == 1, code == 2
      limit.share, after = share_twin.new(numbers, after + 8, now)
      limit.outside = limit.share.outside
    end
    return limit, after
  end,

  -- A value that cannot be read becomes an empty purse.
  open = function(limit, value, now)
    local bucket = value and read(value)
    if not bucket then
      bucket = {
        kind = 0, tries = 0, number = floor(now / 1000), left = 0, period = 0, ends = 0, short_until = 0, touched = 0, trip = 0,
        since_mark = 0, left_at_home = 0, heard = 0, undone_since = 0, stored_share = value and '', debt = 0,
        raised = 0, raised_until = 0,
      }
      bucket.invalid = value and true
    end
    -- What was leased before it was counted is not known: it counts as the whole share.
    if share_twin then
      bucket.share = share_twin.open(limit.share, bucket.stored_share, now)
      bucket.debt = min(bucket.debt, floor(bucket.share[1] / (limit.share.unit or 1)))
    end
    if bucket.ends <= now then bucket.left = 0 end
    bucket.limit, bucket.found, bucket.changed, bucket.now = limit, value, false, now
    return bucket
  end,

  -- Does an act. Returns its reply.
  hear = function(limit, bucket, text, at, now)
    local act, first, second = unpack('<I8I8I8', text, at)
    if act == 3 then return surplus(limit, bucket, first, second, now) end
    if act == 1 then return mark(limit, bucket, first, second, now) end
    if act == 2 then return resend(limit, bucket, first, second, now) end
    if not credit(limit, bucket, text, at + 24, first, second, now) then return NOTHING end
    bucket.changed = true
    return pack('<I8', 2)
  end,

  -- How many times the purse can pay the cost.
  most = function(limit, bucket, cost)
    if limit.capacity == 0 then return 0 end
    if cost == 0 then return 2^53 end
    local left, times = bucket.left, floor(bucket.left / cost)
    if not limit.is_spent or cost > limit.capacity then return times end
    local share = floor(max(limit.share.capacity - bucket.share[1], 0) / (limit.share.unit or 1))
    if is_short(limit, bucket, bucket.now) then
      -- The first request that lacks something has what the others have left.
      local lacking = cost - (left - times * cost)
      if lacking > bucket.left_at_home then return times end
      if cost > bucket.left_at_home then share = min(share, lacking) end
    end
    return floor(plus(left, share) / cost)
  end,

  -- What the purse lacks is paid from the share.
  charge = function(limit, bucket, cost)
    local lacking = max(cost - bucket.left, 0)
    if lacking > 0 then
      bucket.share[1], bucket.debt = plus(bucket.share[1], price(limit, lacking)), plus(bucket.debt, lacking)
    end
    bucket.left, bucket.since_mark, bucket.touched =
      bucket.left - cost + lacking, plus(bucket.since_mark, cost), bucket.now
  end,

  -- Undoes a charge after `undone_since`. Of a window it is of the same period: home has debited the amount, whatever was said since, and
  -- the purse can hold a little more than the largest lease then. Of a token bucket, home does not know of it. A charge after `touched` is
  -- not in this bucket: its node has lost it, or another node with another clock made it.
  undo = function(limit, bucket, cost, charged, now)
    if charged <= bucket.undone_since or charged > bucket.touched or bucket.ends <= now then return false end
    local back = share_twin and min(cost, bucket.debt) or 0
    if back > 0 then
      -- The share may be of another period, unless this was the last charge.
      if bucket.touched ~= charged then return false end
      bucket.share[1], bucket.debt = max(bucket.share[1] - price(limit, back), 0), bucket.debt - back
    end
    bucket.left = plus(bucket.left, cost - back)
    bucket.since_mark = max(bucket.since_mark - cost, 0)
    return true
  end,

  close = function(limit, bucket)
    local kept_until = max(bucket.ends, bucket.short_until, bucket.raised_until)
    local share, share_until = '', 0
    if share_twin then
      share, share_until = share_twin.close(limit.share, bucket.share)
      share = share .. pack('<I8', bucket.debt)
    end
    local form = (share_twin and 2 or 1) + (bucket.raised > 0 and 2 or 0)
    local value = pack('<BBBI5I8I8I8I8I8I8I8I8I8I8I8', form, bucket.kind, bucket.tries, 0, bucket.number, bucket.left,
      bucket.period, bucket.ends, bucket.short_until, bucket.touched, bucket.trip, bucket.since_mark, bucket.left_at_home, bucket.heard,
      bucket.undone_since) .. share
    if bucket.raised > 0 then value = value .. pack('<I8I8', bucket.raised, bucket.raised_until) end
    -- Without a debt, a share that must not be spent is not worth keeping after its purse.
    if not (limit.is_unspent and bucket.debt == 0) then kept_until = max(kept_until, share_until) end
    if bucket.kind ~= 0 then
      value = value .. pack('<I8I8I8I8I8I8', bucket.tag, bucket.amount, bucket.least, bucket.left_then, bucket.mark, bucket.till)
      kept_until = max(kept_until, bucket.mark + max(limit.return_after, limit.timeout) * WAITS_FOR_ANSWER)
    end
    return value, min(kept_until, EXACT)
  end,

  -- An operator gives back at home.
  give_back = function(value)
    return read(value) and value
  end,
}
