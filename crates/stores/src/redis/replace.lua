-- Replaces the value of KEYS[1] by ARGV[2] for ARGV[3] milliseconds, if it is still ARGV[1]. An empty text stands for no value.
-- Returns 1 if it was replaced, else 0.
local found = redis.call('GET', KEYS[1]) or ''
if found ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
