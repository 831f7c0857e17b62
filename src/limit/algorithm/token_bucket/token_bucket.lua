-- Steps a token bucket: the twin of mod.rs, on the functions of rate.lua.

local floor, max = math.floor, math.max
local rate = rate()

return {
  -- From the numbers after `at`, which are text: the capacity, the units in a thousandth of a token, and the units that
  -- come back each microsecond.
  new = function(numbers, at)
    return {
      capacity = tonumber(numbers[at + 1]),
      unit = tonumber(numbers[at + 2]),
      refill = tonumber(numbers[at + 3]),
    }
  end,

  -- How many times it could pay. The quotient of two integers below 2^53 is never rounded up to a whole number that it
  -- does not reach.
  most = function(limit, bucket, cost)
    return floor((limit.capacity - bucket[1]) / (cost * limit.unit))
  end,

  -- Undoes a charge, less what may have come back since, at the rate of any request: that much would not have come back
  -- to a full bucket.
  undo = function(limit, bucket, cost, charged, now, fastest)
    local back = cost * limit.unit - max(now - charged, 0) * max(limit.refill, fastest.refill)
    if back <= 0 then return false end
    bucket[1] = max(bucket[1] - back, 0)
    return true
  end,

  open = rate.open, full = rate.full, empty = rate.empty, charge = rate.charge, close = rate.close,
  give_back = rate.give_back,
}
