-- Adds bans to `banned_twin`: the twin of mod.rs. Its buckets also have the last ban's beginning, end and step, and
-- whether something was spent since that end. In a stored value, these are the 24 bytes after the first 24.

local EXACT, MOST_AHEAD, MAY_BEGIN, KEPT_FOR, MINUTE = 9007199254740991, 10000000, 2^32, 2^33, 60000000
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local pack, unpack, sub = struct.pack, struct.unpack, string.sub

-- Returns a value without its ban, and the ban. Returns false if the value is too short.
local function split(value)
  if #value < 48 then return false end
  return sub(value, 1, 24) .. sub(value, 49), sub(value, 25, 48)
end

local function join(value, ban)
  return sub(value, 1, 24) .. ban .. sub(value, 25)
end

-- Returns the ban's beginning and end, its step, whether something was spent since its end, and for how many minutes after
-- that it is kept. Returns false for an invalid ban.
local function read_ban(ban)
  local first, last, step = unpack('<I8I8I8', ban)
  if first > last or last > EXACT or step > EXACT then return false end
  return first, last, step % MAY_BEGIN, step % KEPT_FOR >= MAY_BEGIN, floor(step / KEPT_FOR)
end

-- Adds a packed ban to a bucket. Returns false for an invalid ban.
local function open_ban(limit, bucket, ban, now)
  local first, last, step, may_begin, kept_for = read_ban(ban)
  if not first then return false end
  if last + limit.forget_after < now then
    first, last, step = 0, 0, 0
  elseif last <= now then
    -- It is over, also if the clock is set back later.
    first = last
  elseif first - now > MOST_AHEAD then
    -- The clock was set back: the ban begins now, or ends now if it was over.
    first, last, bucket.changed = now, now + (last - first), true
  end
  -- The server must keep it for longer than it knows.
  if step > 0 and kept_for < limit.kept_for then bucket.changed = true end
  bucket.ban_first, bucket.ban_last, bucket.ban_step, bucket.may_begin = first, last, step, may_begin
  return true
end

local function runs(bucket)
  return bucket.ban_first < bucket.ban_last and bucket.ban_last > bucket.now
end

local function pack_ban(limit, bucket)
  local step = bucket.ban_step
  if step > 0 then step = step + limit.kept_for * KEPT_FOR end
  return pack('<I8I8I8', bucket.ban_first, bucket.ban_last, step + (bucket.may_begin and MAY_BEGIN or 0))
end

return {
  settles = banned_twin.settles, resets = banned_twin.resets, undo = banned_twin.undo, renew = banned_twin.renew,

  -- Reads the settings of `banned_twin`, how long a ban is remembered after its end, the number of durations, and the
  -- durations.
  new = function(numbers, at, now)
    local limit, forget_after, count
    limit, at = banned_twin.new(numbers, at, now)
    forget_after, count, at = unpack('<I8I8', numbers, at)
    limit.forget_after, limit.kept_for, limit.durations = forget_after, ceil(forget_after / MINUTE), {}
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
    if ban and (bucket.invalid or not open_ban(limit, bucket, ban, now)) then
      bucket = banned_twin.open(limit, '', now)
      bucket.may_begin, bucket.ban_first, bucket.ban_last, bucket.ban_step = false, 0, 0, 0
    end
    -- `stored_until` is unknown: the ban may keep the value for longer.
    bucket.found, bucket.stored_until, bucket.now = value, nil, now
    return bucket
  end,

  most = function(limit, bucket, cost, is_check)
    if runs(bucket) then return 0 end
    -- Only a ban refuses a check that costs nothing and can begin no ban.
    if is_check and cost == 0 and banned_twin.settles and not limit.durations[1] then return EXACT end
    return banned_twin.most(limit, bucket, cost)
  end,

  charge = function(limit, bucket, amount)
    banned_twin.charge(limit, bucket, amount)
    if amount > 0 and not banned_twin.settles then bucket.may_begin = true end
  end,

  -- What is settled while a ban runs does not count as spent since its end, nor what a reset forgets.
  accept = function(limit, bucket, owner, sequence, held, from, to, known, resets, at_reset, life)
    local settled, is_reset =
      banned_twin.accept(limit, bucket, owner, sequence, held, from, to, known, resets, at_reset, life)
    if is_reset then bucket.may_begin = false end
    if settled and settled > 0 and not runs(bucket) then bucket.may_begin = true end
    return settled, is_reset
  end,

  is_banned = runs,

  -- Whether a request that this bucket refuses begins a ban.
  begins_ban = function(limit, bucket, cost)
    if not limit.durations[1] or not bucket.may_begin or runs(bucket) then return false end
    return (banned_twin.most_spent or banned_twin.most)(limit, bucket, cost) < 1
  end,

  begin_ban = function(limit, bucket)
    local step, durations, now = min(bucket.ban_step + 1, MAY_BEGIN - 1), limit.durations, bucket.now
    bucket.ban_first, bucket.ban_step, bucket.may_begin, bucket.changed = now, step, false, true
    bucket.ban_last = min(now + durations[min(step, #durations)], EXACT)
  end,

  close = function(limit, bucket)
    local value, kept_until = banned_twin.close(limit, bucket)
    kept_until = min(kept_until, EXACT)
    if bucket.ban_step > 0 then kept_until = max(kept_until, min(bucket.ban_last + limit.kept_for * MINUTE, EXACT)) end
    return join(value, pack_ban(limit, bucket)), kept_until
  end,

  -- Giving back everything also ends the ban, and forgets its step.
  give_back = function(value, amount, now)
    local other, ban = split(value)
    if not other or not read_ban(ban) then return false end
    other = banned_twin.give_back(other, amount, now)
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
