-- Set our keys again on a node that lost them while we hold a quorum elsewhere.
-- Also in quarantine: a node may then support a valid lease, but must not grant a new one.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, ttl in ms, token
--
-- {nonce, 'A'}   all keys are ours now
-- {nonce, 'F'}   another owner has one, nothing changed
local count = #KEYS / 2
for i = 1, count do
  local holder = redis.call('GET', KEYS[i])
  if holder and holder ~= ARGV[2] then return {ARGV[1], 'F'} end
end
for i = 1, count do
  redis.call('SET', KEYS[i], ARGV[2], 'NX', 'PX', ARGV[3])
end
for i = count + 1, 2 * count do
  if tonumber(redis.call('GET', KEYS[i]) or '0') < tonumber(ARGV[4]) then
    redis.call('SET', KEYS[i], ARGV[4])
  end
end
return {ARGV[1], 'A'}
