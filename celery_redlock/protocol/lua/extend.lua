-- Extend the keys that carry our owner value; never shorten one, never create one.
-- The fence counters are raised in any case, also on a node that missed the acquire.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, ttl in ms, token
--
-- {nonce, 'A'}   all keys are ours and live at least ttl from now
-- {nonce, 'M'}   some are missing, none has another owner
-- {nonce, 'F'}   another owner has one
local count, ttl = #KEYS / 2, tonumber(ARGV[3])
local ours, missing = 0, 0
for i = 1, count do
  local holder = redis.call('GET', KEYS[i])
  if holder == ARGV[2] then
    ours = ours + 1
    if redis.call('PTTL', KEYS[i]) < ttl then redis.call('PEXPIRE', KEYS[i], ttl) end
  elseif not holder then
    missing = missing + 1
  end
end
for i = count + 1, 2 * count do
  if tonumber(redis.call('GET', KEYS[i]) or '0') < tonumber(ARGV[4]) then
    redis.call('SET', KEYS[i], ARGV[4])
  end
end
if ours == count then return {ARGV[1], 'A'} end
if ours + missing == count then return {ARGV[1], 'M'} end
return {ARGV[1], 'F'}
