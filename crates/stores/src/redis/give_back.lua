-- Gives back an amount of what is spent of some buckets, atomically. The function `make_twin` is defined before this text.
--
-- KEYS are the buckets. ARGV[1] is the amount, in thousandths; then follows for each key the index of its algorithm among the
-- twins. The reply is the time, and for each key its value before and after; nil for a bucket that is full, and an empty
-- text for a key of another type. An invalid value stays as it is. A bucket expires when it would have.
-- The log of Redis has a line about it: no gateway takes part.

local reply, changed = {redis.call('TIME')}, 0
for index, key in ipairs(KEYS) do
  local before = redis.pcall('GET', key)
  if type(before) == 'table' then
    if not string.find(before.err, '^WRONGTYPE') then return before end
    before = ''
  end
  local after = before
  if before then
    local less = make_twin(tonumber(ARGV[index + 1])).give_back(before, tonumber(ARGV[1]))
    if less then
      redis.call('SET', key, less, 'KEEPTTL')
      changed = changed + 1
      after = less
    end
  end
  reply[2 * index], reply[2 * index + 1] = before, after
end
if changed > 0 then
  local amount = string.gsub(string.format('%.3f', ARGV[1] / 1000), '%.?0+$', '')
  local line = 'tollgate: amounts were given back by an operator buckets=' .. changed .. ' amount=' .. amount
  redis.log(redis.LOG_NOTICE, line)
end
return reply
