-- Steps a sliding window: the twin of mod.rs, in doubles that hold every integer below 2^53 exactly. A bucket is the
-- spent amount, and the amount granted in each step that still counts: first in steps of the present length, then in
-- steps of another length, which a changed file left behind. granted_steps.rs describes the stored form.

local EXACT = 9007199254740991
local MOST_AHEAD = 10000000
local MOST_STEPS, LONGEST_STEP = 61, 1339200000000
local floor, max, min, rep = math.floor, math.max, math.min, string.rep
local values = unpack
local pack, unpack = struct.pack, struct.unpack

local function format(width, count)
  return '<' .. rep('I' .. width, count)
end

-- Reads steps of one length. Returns them and the position after them, or false for an invalid value.
local function read(value, at)
  if #value - at < 13 then return false end
  local width, count, length, latest = unpack('<BBI6I6', value, at)
  local after = at + 14 + width * count
  if width < 1 or width > 7 or count < 1 or count > MOST_STEPS or length < 1 or length > LONGEST_STEP then return false end
  if latest * length > EXACT or count > latest + 1 or after > #value + 1 then return false end
  return {length = length, latest = latest, count = count, granted = {unpack(format(width, count), value, at + 14)}}, after
end

local function write(steps)
  local granted, count, largest = steps.granted, steps.count, 0
  for index = 1, count do largest = max(largest, granted[index]) end
  local width, bound = 1, 256
  while largest >= bound do width, bound = width + 1, bound * 256 end
  return pack('<BBI6I6', width, count, steps.length, steps.latest) .. pack(format(width, count), values(granted, 1, count))
end

local function total(steps)
  local sum = 0
  for index = 1, steps.count do sum = sum + steps.granted[index] end
  return sum
end

-- Reads the steps of a stored bucket, of one length or of two. Returns them and the sum of their grants, or false for
-- an invalid value.
local function read_all(value)
  if #value % 8 ~= 0 then return false end
  local first, after = read(value, 1)
  if not first then return false end
  local spent, second = total(first), nil
  if #value - after >= 7 then
    second, after = read(value, after)
    if not second or #value - after >= 7 then return false end
    spent = spent + total(second)
  end
  return spent <= EXACT and first, second, spent
end

-- Returns steps with a single grant, in the present step.
local function present(limit, spent)
  return {length = limit.step, latest = limit.present, count = 1, granted = {spent}}
end

-- Forgets the steps that no longer count. Returns false if none is left.
local function forget(steps, bucket, window, now)
  local granted, count = steps.granted, steps.count
  while count > 0 and (granted[count] == 0 or (steps.latest - count + 2) * steps.length + window <= now) do
    bucket.spent = bucket.spent - granted[count]
    count = count - 1
  end
  steps.count = count
  return count > 0 and steps
end

-- Merges steps of two lengths. The grants of the older steps count in the first newer step that ends no earlier.
local function fold(one, other)
  local older, newer = one, other
  if (other.latest + 1) * other.length < (one.latest + 1) * one.length then older, newer = other, one end
  local step = floor(((older.latest + 1) * older.length - 1) / newer.length)
  local index = min(newer.latest - step + 1, newer.count)
  newer.granted[index] = newer.granted[index] + total(older)
  return newer
end

return {
  new = function(numbers, at, now)
    local capacity, window, step, after = unpack('<I8I8I8', numbers, at)
    return {capacity = capacity, window = window, step = step, present = floor(now / step)}, after
  end,

  -- Grants too far ahead are moved to the present step. The bucket must be written, or every read would move them
  -- again.
  open = function(limit, value, now)
    local bucket = {limit = limit, found = value, changed = false, spent = 0}
    if not value then return bucket end
    local first, second, spent = read_all(value)
    if not first then
      bucket[1], bucket.spent, bucket.invalid = present(limit, limit.capacity), limit.capacity, true
      return bucket
    end
    bucket.spent = spent
    if first.latest * first.length - now > MOST_AHEAD or second and second.latest * second.length - now > MOST_AHEAD then
      bucket[1], bucket.changed = present(limit, spent), true
      return bucket
    end
    first = forget(first, bucket, limit.window, now)
    second = second and forget(second, bucket, limit.window, now)
    bucket[1] = first or second or nil
    bucket[2] = first and second or nil
    return bucket
  end,

  -- How many times the bucket can pay the cost.
  most = function(limit, bucket, cost)
    return floor((limit.capacity - bucket.spent) / cost)
  end,

  charge = function(limit, bucket, cost)
    local own, other = bucket[1], bucket[2]
    if other and other.length == limit.step then own, other = other, own end
    if not own or own.length ~= limit.step then
      if other then own = fold(own, other) end
      own, other = {length = limit.step, latest = limit.present, count = 1, granted = {0}}, own
    end
    local granted, later = own.granted, limit.present - own.latest
    if later > 0 then
      for index = own.count, 1, -1 do granted[index + later] = granted[index] end
      for index = 1, later do granted[index] = 0 end
      own.count, own.latest = own.count + later, limit.present
    end
    granted[1] = granted[1] + cost
    bucket.spent, bucket[1], bucket[2] = bucket.spent + cost, own, other
  end,

  -- Returns the value to store, and until when one of its grants counts.
  close = function(limit, bucket)
    local value, last = '', 0
    for index = 1, 2 do
      local steps = bucket[index]
      if steps then value, last = value .. write(steps), max(last, (steps.latest + 1) * steps.length) end
    end
    return value .. rep('\0', -#value % 8), last + limit.window
  end,

  -- Undoes a charge in the step in which it was granted.
  undo = function(limit, bucket, cost, charged)
    for index = 1, 2 do
      local steps = bucket[index]
      if steps and steps.length == limit.step then
        local place = steps.latest - floor(charged / limit.step) + 1
        local granted = place >= 1 and place <= steps.count and steps.granted[place]
        if not granted or granted < cost then return false end
        steps.granted[place], bucket.spent = granted - cost, bucket.spent - cost
        return true
      end
    end
    return false
  end,

  -- Takes from the steps that end last. Of two steps that end together, takes from the first.
  give_back = function(value, amount)
    local first, second = read_all(value)
    if not first then return false end
    while amount > 0 do
      local granted, place, last = nil, nil, 0
      for _, steps in ipairs({first, second}) do
        local index = 1
        while index <= steps.count and steps.granted[index] == 0 do index = index + 1 end
        local ends = (steps.latest - index + 2) * steps.length
        if index <= steps.count and ends > last then granted, place, last = steps.granted, index, ends end
      end
      if not granted then break end
      local taken = min(amount, granted[place])
      granted[place], amount = granted[place] - taken, amount - taken
    end
    local less = write(first) .. (second and write(second) or '')
    return less .. rep('\0', -#less % 8)
  end,
}
