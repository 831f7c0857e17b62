-- Takes the charges of many requests from many buckets, in one act, on the server's clock. Knows no algorithm: the list
-- `twins` and the moment `now` stand before this text.
--
-- KEYS are the buckets. ARGV is a row of numbers:
--   how many limits; for each: its bucket's place in KEYS, its algorithm's in `twins`, and three numbers;
--   then runs of equal requests, to the end: how many times, how many enforced charges, how many shadow charges;
--   for each charge: which limit, and the cost in thousandths.
-- The reply is `now`, how many buckets had to be healed, how many requests of each run were granted (the first ones),
-- and each bucket's value as it was found; nil for a bucket that is full.

local KEYS, ARGV, tonumber = KEYS, ARGV, tonumber
local limits, found, healed = {}, {}, 0
-- By bucket: the limit that charged it last, and so holds what it is worth; none as long as nothing has changed.
local holders = {}

local at = 1
for number = 1, tonumber(ARGV[1]) do
  local key, twin = tonumber(ARGV[at + 1]), twins[tonumber(ARGV[at + 2])]
  local limit = twin.new(tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]))
  at = at + 5
  limit.key, limit.twin, limits[number] = key, twin, limit
  local value = found[key]
  if value == nil then
    value = redis.pcall('GET', KEYS[key])
    if type(value) == 'table' and not string.find(value.err, '^WRONGTYPE') then return value end
  end
  if not value then
    twin.fill(limit, now)
  elseif not twin.open(limit, value, now) then
    -- Whatever this was, it is no reason for a free refill.
    twin.drain(limit, now)
    value, holders[key], healed = twin.close(limit), limit, healed + 1
  end
  found[key] = value
end

-- A bucket under two sets of numbers, in the moment in which they change in the file: each reads what the other left.
local function hold(limit)
  local holder = holders[limit.key]
  if holder and holder ~= limit then limit.twin.open(limit, holder.twin.close(holder), now) end
end

local reply = {now, healed}
local runs = 2
while at < #ARGV do
  local times, enforced, shadow = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local charges = enforced + shadow
  local asked, costs = {}, {}
  for index = 1, charges do
    asked[index], costs[index] = limits[tonumber(ARGV[at + 2 + 2 * index])], tonumber(ARGV[at + 3 + 2 * index])
  end
  at = at + 3 + 2 * charges

  local granted, fits = 0, true
  while fits and granted < times do
    for index = 1, enforced do
      local limit = asked[index]
      hold(limit)
      fits = fits and limit.twin.fits(limit, costs[index])
    end
    -- At one moment, what one request cannot pay its equals behind it cannot either.
    if fits then
      for index = 1, charges do
        local limit = asked[index]
        hold(limit)
        if index <= enforced or limit.twin.fits(limit, costs[index]) then
          limit.twin.charge(limit, costs[index])
          holders[limit.key] = limit
        end
      end
      granted = granted + 1
    end
  end
  runs = runs + 1
  reply[runs] = granted
end

for key, holder in pairs(holders) do
  local value, full_at = holder.twin.close(holder)
  -- '%.0f': some servers would print a large number with an exponent.
  local left = string.format('%.0f', math.max(math.ceil((full_at - now) / 1000), 0) + 1)
  redis.call('SET', KEYS[key], value, 'PX', left)
end
for key = 1, #KEYS do reply[runs + key] = found[key] end
return reply
