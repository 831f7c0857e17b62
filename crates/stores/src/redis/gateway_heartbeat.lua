-- Records the heartbeat of a gateway and counts the live ones, on the server's clock. KEYS[1] has 16 bytes for each
-- gateway: its id, and the time of its last heartbeat. KEYS[2] has for each gateway the same 16 bytes, its host name,
-- and the hash of its configuration. One byte before each text is its length. KEYS[3] has for each gateway the 16 bytes and
-- the newest format of states that it reads (1 byte). ARGV has this gateway's id (8 bytes), for how many microseconds a
-- heartbeat counts, this gateway's texts as in KEYS[2], and its format. The reply is the number of live gateways, the other
-- gateways as in KEYS[2], and the number of live gateways with an older format or none. The lists are separate, so that an
-- older gateway that knows only the first ones is still counted.

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

local formats, known, older = read(KEYS[3]), {me .. ARGV[4]}, #alive - 1
if #formats % 17 ~= 0 then formats = '' end
for at = 1, #formats, 17 do
  if is_other(formats, at) then
    known[#known + 1] = string.sub(formats, at, at + 16)
    if string.byte(formats, at + 16) >= string.byte(ARGV[4]) then older = older - 1 end
  end
end
redis.call('SET', KEYS[3], table.concat(known), 'PX', lasts)
return {#alive, others, older}
