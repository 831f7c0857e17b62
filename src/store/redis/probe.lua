-- Tries what take.lua does, on a key that is nobody's bucket, and names what is refused.
local refused = {}
for _, command in ipairs({{'TIME'}, {'GET', KEYS[1]}, {'SET', KEYS[1], '', 'PX', '1'}}) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = command[1] .. ': ' .. reply.err
  end
end
return refused
