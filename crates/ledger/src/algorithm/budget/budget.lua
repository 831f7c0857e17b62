-- Steps a budget: the twin of mod.rs, on the functions of owner_entries.lua. `spent_twin` is the twin of the token
-- bucket or fixed window, and `spent` is its bucket. A stored value has the 24 bytes of that bucket, and then the
-- entries.

-- Returns until when a server keeps this value of what is spent, if `held` more is spent at the moment `at`.
local function kept_with(limit, value, held, at)
  local then_limit = spent_twin.at and spent_twin.at(limit, at) or limit
  local bucket = spent_twin.open(then_limit, value, at)
  bucket[1] = min(bucket[1] + min(held * (limit.unit or 1), EXACT), EXACT)
  local _, kept_until = spent_twin.close(then_limit, bucket)
  return kept_until
end

-- Returns the value of what is spent, with what timed holds held that have ended: as at their ends. A window spends nothing if
-- its period at that moment is over.
local function spend_ended(limit, value, ended)
  for index = 1, #ended do
    local at, held = ended[index][1], ended[index][2]
    -- A period that begins with a grant begins at the end of the hold.
    local bucket = spent_twin.open(limit.by_grant and spent_twin.at(limit, at) or limit, value, at)
    if not limit.first or bucket[2] <= at then
      bucket[1] = min(bucket[1] + min(held * (limit.unit or 1), EXACT), EXACT)
    end
    value = spent_twin.close(limit, bucket)
  end
  return value
end

-- A bucket that cannot be read has spent everything, and holds nothing.
local function open(limit, value, now)
  local spent, entries = value, false
  if value and #value > 24 then spent, entries = sub(value, 1, 24), sub(value, 25) end
  local bucket = {limit = limit, found = value, changed = false}
  bucket.spent = spent_twin.open(limit, spent, now)
  if not open_entries(bucket, entries, now) or bucket.spent.invalid then
    bucket.spent, bucket.invalid = spent_twin.open(limit, '', now), true
    open_entries(bucket, false, now)
  end
  if bucket.ended then
    bucket.with_ended = spend_ended(limit, spent, bucket.ended)
    bucket.spent = spent_twin.open(limit, bucket.with_ended, now)
  end
  if bucket.spent.changed then bucket.changed = true end
  -- `stored_until` is unknown: the spent amount may keep the value for longer.
  bucket.stored_until = nil
  return bucket
end

return {
  -- The limit is that of `spent_twin`.
  new = spent_twin.new, open = open, settles = true, resets = WIDTH == 48,

  -- Accepts a report. If its owner has reset the bucket, what was spent is forgotten. Then charges what the owner has
  -- settled, even if the bucket cannot pay that. Returns the settled amount, and whether the bucket was reset.
  accept = function(limit, bucket, owner, sequence, held, from, to, known, resets, at_reset, life)
    local settled, is_reset = accept_report(bucket, owner, sequence, held, from, to, known, resets, at_reset, life)
    if not settled then return false end
    local spent = bucket.spent
    if is_reset then spent[1] = 0 end
    spent[1] = min(spent[1] + min(settled * (limit.unit or 1), EXACT), EXACT)
    return settled, is_reset
  end,

  -- How many times the bucket could hold the amount. If nothing is left, a request that reserves nothing is refused
  -- too.
  most = function(limit, bucket, amount)
    if bucket.count == 0 then return 0 end
    local unit = limit.unit or 1
    local room = limit.capacity - bucket.spent[1] - bucket.held * unit
    if amount == 0 then return room >= unit and 2^53 or 0 end
    return floor(room / (amount * unit))
  end,

  -- How many times the bucket could hold the amount if nothing were held.
  most_spent = function(limit, bucket, amount)
    return spent_twin.most(limit, bucket.spent, max(amount, 1))
  end,

  -- Adds to what the owner of the last report holds.
  charge = function(limit, bucket, amount)
    bucket.held, bucket.added = bucket.held + amount, bucket.added + amount
  end,

  -- A report also says what is settled, so it is never accepted without `open`.
  renew = function() return false end,

  close = function(limit, bucket)
    local value, kept_until = spent_twin.close(limit, bucket.spent)
    kept_until = min(kept_until, EXACT)
    if bucket.count == 0 then return value, kept_until end
    local entries, entries_until, last, held = close_entries(bucket)
    -- What timed holds hold is spent at their ends, unless they settle.
    if last then kept_until = max(kept_until, min(kept_with(limit, value, held, last), EXACT)) end
    return value .. entries, max(kept_until, entries_until)
  end,

  -- Giving back everything also forgets the timed holds that have ended, so that they are not spent later.
  give_back = function(value, amount, now)
    if #value < 24 then return false end
    local spent, entries = spent_twin.give_back(sub(value, 1, 24), amount), sub(value, 25)
    if not spent or entries ~= '' and not read_entries(entries) then return false end
    if amount >= EXACT and entries ~= '' then entries = without_ended(entries, now) end
    return spent .. entries
  end,

  -- The reply has the spent amount as it was found, with what ended timed holds held, and a digest of the entries.
  digest = function(limit, bucket, found)
    if #found <= 24 then return found end
    return (bucket.with_ended or sub(found, 1, 24)) .. digest_entries(bucket)
  end,
}
