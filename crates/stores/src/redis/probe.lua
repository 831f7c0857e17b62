-- Tries the commands of take.lua on a key that is not a bucket, and returns the refused ones.
local refused = {}
for _, command in ipairs({{'TIME'}, {'GET', KEYS[1]}, {'SET', KEYS[1], '', 'PX', '1'}}) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = command[1] .. ': ' .. reply.err
  end
end
return refused
