-- Says that a gateway is alive, and counts those that are, on the server's clock.
-- KEYS[1] is their list, 16 bytes for each: who, and when last heard. ARGV: who says so (8 bytes), and for how many
-- microseconds that counts. The reply is how many are alive.

local time = redis.call('TIME')
local now, counts = time[1] * 1000000 + time[2], tonumber(ARGV[2])
local list = redis.pcall('GET', KEYS[1])
-- Whatever else this was, and more gateways than anybody has: the list begins anew.
if type(list) ~= 'string' or #list % 16 ~= 0 or #list > 65536 then list = '' end
local alive = {ARGV[1] .. struct.pack('<I8', now)}
for at = 1, #list, 16 do
  local heard = struct.unpack('<I8', list, at + 8)
  if string.sub(list, at, at + 7) ~= ARGV[1] and math.abs(now - heard) < counts then
    alive[#alive + 1] = string.sub(list, at, at + 15)
  end
end
redis.call('SET', KEYS[1], table.concat(alive), 'PX', string.format('%.0f', counts / 1000))
return #alive
