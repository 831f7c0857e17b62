-- Steps a leaky bucket: the twin of mod.rs, on the functions of rate.lua. The spent amount is the places taken. The
-- gateway computes how long each request waits.

return {
  -- Reads the capacity, the units in a thousandth of a place, the units that leave each microsecond, and how much may
  -- be ahead of a request that can still wait.
  new = function(numbers, at)
    local capacity, unit, refill, reach, after = struct.unpack('<I8I8I8I8', numbers, at)
    return {capacity = capacity, unit = unit, refill = refill, reach = reach}, after
  end,

  -- How many times the bucket can pay: while there is room, and not too much is ahead of the last request. A cost below
  -- 1 also needs a whole free place.
  most = function(limit, bucket, cost)
    local price, one = cost * limit.unit, 1000 * limit.unit
    local ahead = math.min(limit.capacity - math.max(price, one), limit.reach)
    return math.floor((ahead - bucket[1]) / price) + 1
  end,

  open = open, charge = charge, close = close, give_back = give_back, unraised = true,
}
