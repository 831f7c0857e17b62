-- Steps a leaky bucket: the twin of mod.rs, on the functions of rate.lua. What is spent are places. The gateway computes how
-- long each request waits.

local floor, max, min = math.floor, math.max, math.min
local rate = rate()

return {
  -- From the numbers after `at`, which are text: the capacity, the units in a thousandth of a place, the units that leave
  -- each microsecond, and the most that may be ahead of a request: then it waits as long as it can.
  new = function(numbers, at)
    return {
      capacity = tonumber(numbers[at + 1]),
      unit = tonumber(numbers[at + 2]),
      refill = tonumber(numbers[at + 3]),
      reach = tonumber(numbers[at + 4]),
    }
  end,

  -- How many times it could pay: as long as there is room, and as what is ahead of the last is not too much. A cost below 1
  -- waits in a place of its own, too.
  most = function(limit, bucket, cost)
    local price, one = cost * limit.unit, 1000 * limit.unit
    local ahead = min(limit.capacity - max(price, one), limit.reach)
    return floor((ahead - bucket[1]) / price) + 1
  end,

  open = rate.open, full = rate.full, empty = rate.empty, charge = rate.charge, close = rate.close,
  give_back = rate.give_back,
}
