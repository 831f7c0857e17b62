-- Steps a token bucket: the twin of mod.rs, on the functions of rate.lua.

return {
  -- Reads the capacity, the units in a thousandth of a token, and the units that come back each microsecond.
  new = function(numbers, at)
    local capacity, unit, refill, after = struct.unpack('<I8I8I8', numbers, at)
    return {capacity = capacity, unit = unit, refill = refill}, after
  end,

  -- How many times the bucket can pay the cost. The quotient of two integers below 2^53 is never rounded up to a whole
  -- number that it does not reach.
  most = function(limit, bucket, cost)
    return math.floor((limit.capacity - bucket[1]) / (cost * limit.unit))
  end,

  -- Undoes a charge, less what may have been refilled since at the fastest rate of any request: without the charge,
  -- this refill might have met a full bucket.
  undo = function(limit, bucket, cost, charged, now, fastest)
    local back = cost * limit.unit - math.max(now - charged, 0) * math.max(limit.refill, fastest.refill)
    if back <= 0 then return false end
    bucket[1] = math.max(bucket[1] - back, 0)
    return true
  end,

  open = open, charge = charge, close = close, give_back = give_back,
}
