-- Steps a leaky bucket: the twin of mod.rs, on the functions of rate.lua. What is spent are places. The gateway computes how
-- long each request waits.

return {
  -- The capacity, the units in a thousandth of a place, the units that leave each microsecond, and the most that may be ahead
  -- of a request: then it waits as long as it can.
  new = function(numbers, at)
    local capacity, unit, refill, reach, after = struct.unpack('<I8I8I8I8', numbers, at)
    return {capacity = capacity, unit = unit, refill = refill, reach = reach}, after
  end,

  -- How many times it could pay: as long as there is room, and as what is ahead of the last is not too much. A cost below 1
  -- waits in a place of its own, too.
  most = function(limit, bucket, cost)
    local price, one = cost * limit.unit, 1000 * limit.unit
    local ahead = math.min(limit.capacity - math.max(price, one), limit.reach)
    return math.floor((ahead - bucket[1]) / price) + 1
  end,

  open = open, charge = charge, close = close, give_back = give_back,
}
