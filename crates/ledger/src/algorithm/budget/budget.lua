-- Steps a budget: the twin of mod.rs, on the functions of owner_entries.lua. `spent_twin` is the twin of the token bucket or fixed
-- window, whose bucket is `spent` here: what is spent. A stored value is that bucket's 24 bytes, and then the entries.

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
  if bucket.spent.changed then bucket.changed = true end
  -- The server may keep the value for longer, because of what is spent.
  bucket.stored_until = nil
  return bucket
end

return {
  -- The limit is that of the other twin.
  new = spent_twin.new, open = open, settles = true,

  -- Accepts a report, and charges what its owner has settled, even if the bucket cannot pay that. Returns what it has settled.
  accept = function(limit, bucket, owner, sequence, held, from, to)
    local settled = accept_report(bucket, owner, sequence, held, from, to)
    if not settled then return false end
    local spent = bucket.spent
    spent[1] = min(spent[1] + min(settled * (limit.unit or 1), EXACT), EXACT)
    return settled
  end,

  -- How many times it could hold the amount. Who reserves nothing is still refused if nothing is left.
  most = function(limit, bucket, amount)
    if bucket.count == 0 then return 0 end
    local unit = limit.unit or 1
    local room = limit.capacity - bucket.spent[1] - bucket.held * unit
    if amount == 0 then return room >= unit and 2^53 or 0 end
    return floor(room / (amount * unit))
  end,

  -- How many times it could hold the amount if nothing were held.
  most_spent = function(limit, bucket, amount)
    return spent_twin.most(limit, bucket.spent, max(amount, 1))
  end,

  -- Adds to what the last speaker holds.
  charge = function(limit, bucket, amount)
    bucket.held, bucket.added = bucket.held + amount, bucket.added + amount
  end,

  -- A report also says what is settled, so it is never accepted without `open`.
  renew = function() return false end,

  close = function(limit, bucket)
    local value, kept_until = spent_twin.close(limit, bucket.spent)
    kept_until = min(kept_until, EXACT)
    if bucket.count == 0 then return value, kept_until end
    local entries, entries_until = close_entries(bucket)
    return value .. entries, max(kept_until, entries_until)
  end,

  give_back = function(value, amount)
    if #value < 24 then return false end
    local spent, entries = spent_twin.give_back(sub(value, 1, 24), amount), sub(value, 25)
    if not spent or entries ~= '' and not read_entries(entries) then return false end
    return spent .. entries
  end,

  -- What the reply has: what is spent as it was found, and of the entries the sum, and that of the owner that calls.
  digest = function(limit, bucket, found)
    if #found <= 24 then return found end
    return sub(found, 1, 24) .. digest_entries(bucket)
  end,
}
