-- Second round of an acquire: raise the fence counters to the token, only where every lock key
-- still carries our owner value. Raising without that condition yields duplicate tokens.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, token
--
-- {nonce, 'A'}   the keys are ours and the counters are at the token
-- {nonce, 'F'}   not ours any more, or a counter is above the token already; nothing changed
local count = #KEYS / 2
for i = 1, count do
  if redis.call('GET', KEYS[i]) ~= ARGV[2] then return {ARGV[1], 'F'} end
end
-- A counter above the token: this node granted us more than was counted, or granted another attempt
-- since. Counting it towards the quorum would let two holders have one token.
for i = count + 1, 2 * count do
  if tonumber(redis.call('GET', KEYS[i]) or '0') > tonumber(ARGV[3]) then return {ARGV[1], 'F'} end
end
for i = count + 1, 2 * count do
  redis.call('SET', KEYS[i], ARGV[3])
end
return {ARGV[1], 'A'}
