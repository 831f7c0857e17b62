-- A token bucket as it is written by hand. KEYS[1] is the bucket; ARGV are the caller's time in milliseconds, tokens
-- per second, the burst, the cost, and for how many milliseconds the bucket is kept. Returns whether it was granted, and
-- the wait.
local now, rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens') or burst)
local since = tonumber(redis.call('HGET', KEYS[1], 'since') or now)
tokens = math.min(burst, tokens + math.max(0, now - since) * rate / 1000)

local granted, wait = 0, 0
if tokens >= cost then
  tokens, granted = tokens - cost, 1
else
  wait = math.ceil((cost - tokens) / rate * 1000)
end

redis.call('HSET', KEYS[1], 'tokens', tokens)
-- Callers' times come out of order: going back would refill the same time twice.
redis.call('HSET', KEYS[1], 'since', math.max(now, since))
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {granted, wait}
