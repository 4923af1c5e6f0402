-- Second round of an acquire: raise the fence counters to the token, only where every lock key
-- still carries our owner value. Raising without that condition yields duplicate tokens.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, token
--
-- {nonce, 'A'}   raised
-- {nonce, 'F'}   not ours any more, nothing changed
local count = #KEYS / 2
for i = 1, count do
  if redis.call('GET', KEYS[i]) ~= ARGV[2] then return {ARGV[1], 'F'} end
end
for i = count + 1, 2 * count do
  if tonumber(redis.call('GET', KEYS[i]) or '0') < tonumber(ARGV[3]) then
    redis.call('SET', KEYS[i], ARGV[3])
  end
end
return {ARGV[1], 'A'}
