-- Adds bans to another twin: the twin of ban.rs. A bucket is that of `banned_twin`, with the ban's beginning and end, its step, and
-- whether something was spent since its end. In a stored value, these are the 24 bytes after the first 24.

local EXACT, MOST_AHEAD, MAY_BEGIN = 9007199254740991, 10000000, 2^32
local max, min, pack, unpack, sub = math.max, math.min, struct.pack, struct.unpack, string.sub

-- A value without the ban, and the ban; false for a value that is too short.
local function split(value)
  if #value < 48 then return false end
  return sub(value, 1, 24) .. sub(value, 49), sub(value, 25, 48)
end

local function join(value, ban)
  return sub(value, 1, 24) .. ban .. sub(value, 25)
end

-- Adds a packed ban to a bucket. False if it cannot be a ban.
local function open_ban(bucket, ban, now)
  local first, last, step = unpack('<I8I8I8', ban)
  if first > last or last > EXACT or step >= 2 * MAY_BEGIN then return false end
  if first - now > MOST_AHEAD then
    -- The clock was set back: the ban begins now.
    first, last, bucket.changed = now, now + (last - first), true
  end
  bucket.may_begin = step >= MAY_BEGIN
  if bucket.may_begin then step = step - MAY_BEGIN end
  bucket.ban_first, bucket.ban_last, bucket.ban_step = first, last, step
  return true
end

local function pack_ban(bucket)
  return pack('<I8I8I8', bucket.ban_first, bucket.ban_last, bucket.ban_step + (bucket.may_begin and MAY_BEGIN or 0))
end

return {
  settles = banned_twin.settles, undo = banned_twin.undo, renew = banned_twin.renew,

  -- The limit of the other twin, how long a ban is remembered after its end, and the number of durations and the durations.
  new = function(numbers, at, now)
    local limit, forget_after, count
    limit, at = banned_twin.new(numbers, at, now)
    forget_after, count, at = unpack('<I8I8', numbers, at)
    limit.forget_after, limit.durations = forget_after, {}
    for index = 1, count do limit.durations[index], at = unpack('<I8', numbers, at) end
    return limit, at
  end,

  -- A bucket that cannot be read has no ban.
  open = function(limit, value, now)
    local other, ban = value, false
    if value then
      other, ban = split(value)
      if not other then other = '' end
    end
    local bucket = banned_twin.open(limit, other, now)
    bucket.may_begin, bucket.ban_first, bucket.ban_last, bucket.ban_step = false, 0, 0, 0
    if ban and (bucket.invalid or not open_ban(bucket, ban, now)) then
      bucket = banned_twin.open(limit, '', now)
      bucket.may_begin, bucket.ban_first, bucket.ban_last, bucket.ban_step = false, 0, 0, 0
    end
    -- The server may keep the value for longer, because of the ban.
    bucket.found, bucket.stored_until, bucket.now = value, nil, now
    return bucket
  end,

  most = function(limit, bucket, cost)
    if bucket.ban_last > bucket.now then return 0 end
    -- Only a ban refuses a request that costs nothing and begins none.
    if cost == 0 and banned_twin.settles and not limit.durations[1] then return EXACT end
    return banned_twin.most(limit, bucket, cost)
  end,

  charge = function(limit, bucket, amount)
    banned_twin.charge(limit, bucket, amount)
    if amount > 0 and not banned_twin.settles then bucket.may_begin = true end
  end,

  -- What is settled while a ban runs does not count as spent since its end.
  accept = function(limit, bucket, owner, sequence, held, from, to)
    local settled = banned_twin.accept(limit, bucket, owner, sequence, held, from, to)
    if settled and settled > 0 and bucket.ban_last <= bucket.now then bucket.may_begin = true end
    return settled
  end,

  is_banned = function(bucket) return bucket.ban_last > bucket.now end,

  -- Whether a request that this bucket refuses begins a ban.
  begins_ban = function(limit, bucket, cost)
    if not limit.durations[1] or not bucket.may_begin or bucket.ban_last > bucket.now then return false end
    return (banned_twin.most_spent or banned_twin.most)(limit, bucket, cost) < 1
  end,

  begin_ban = function(limit, bucket)
    local step, durations, now = 1, limit.durations, bucket.now
    if bucket.ban_step > 0 and now <= bucket.ban_last + limit.forget_after then
      step = min(bucket.ban_step + 1, MAY_BEGIN - 1)
    end
    bucket.ban_first, bucket.ban_step, bucket.may_begin, bucket.changed = now, step, false, true
    bucket.ban_last = min(now + durations[min(step, #durations)], EXACT)
  end,

  close = function(limit, bucket)
    local value, kept_until = banned_twin.close(limit, bucket)
    kept_until = min(kept_until, EXACT)
    if bucket.ban_step > 0 then kept_until = max(kept_until, min(bucket.ban_last + limit.forget_after, EXACT)) end
    return join(value, pack_ban(bucket)), kept_until
  end,

  -- Giving back everything also ends the ban, and forgets its step.
  give_back = function(value, amount)
    local other, ban = split(value)
    if not other or not open_ban({}, ban, 0) then return false end
    other = banned_twin.give_back(other, amount)
    if not other then return false end
    if amount >= EXACT then ban = pack('<I8I8I8', 0, 0, 0) end
    return join(other, ban)
  end,

  -- The reply has the ban as it was found.
  digest = banned_twin.digest and function(limit, bucket, found)
    local other, ban = split(found)
    if not other then return found end
    return join(banned_twin.digest(limit, bucket, other), ban)
  end,
}
