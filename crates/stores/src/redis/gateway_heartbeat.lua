-- Records the heartbeat of a gateway and counts the live ones, on the server's clock.
-- KEYS[1] is the list of gateways, 16 bytes for each: its id, and the time of its last heartbeat. KEYS[2] lists what they run:
-- the same 16 bytes, then the host name and the hash of the configuration, each after a byte with its length. ARGV: the id of
-- this gateway (8 bytes), for how many microseconds a heartbeat counts, and its host name and hash, each after its length.
-- The reply is how many gateways are alive, and what the others run. The lists are separate, so that an older gateway that
-- knows only the first one is still counted.

local time = redis.call('TIME')
local now, counts = time[1] * 1000000 + time[2], tonumber(ARGV[2])
local me = ARGV[1] .. struct.pack('<I8', now)
local lasts = string.format('%.0f', counts / 1000)

-- A value of another type, or a list longer than any real one, is replaced by an empty list.
local function read(key)
  local list = redis.pcall('GET', key)
  if type(list) ~= 'string' or #list > 65536 then return '' end
  return list
end

local function is_other(list, at)
  local heard = struct.unpack('<I8', list, at + 8)
  return string.sub(list, at, at + 7) ~= ARGV[1] and math.abs(now - heard) < counts
end

local list = read(KEYS[1])
if #list % 16 ~= 0 then list = '' end
local alive = {me}
for at = 1, #list, 16 do
  if is_other(list, at) then alive[#alive + 1] = string.sub(list, at, at + 15) end
end
redis.call('SET', KEYS[1], table.concat(alive), 'PX', lasts)

local running, others, at = read(KEYS[2]), {}, 1
while at + 16 <= #running do
  local host = string.byte(running, at + 16)
  local hash = string.byte(running, at + 17 + host)
  if not hash or at + 17 + host + hash > #running then break end
  local next = at + 18 + host + hash
  if is_other(running, at) then others[#others + 1] = string.sub(running, at, next - 1) end
  at = next
end
others = table.concat(others)
redis.call('SET', KEYS[2], me .. ARGV[3] .. others, 'PX', lasts)
return {#alive, others}
