-- Delete the keys that carry our owner value, then raise the fence counters.
-- DEL comes first, so that a broken counter cannot keep a lock.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, token (0: none), ms to keep the keys for a minimum hold (0: delete now)
--
-- {nonce, 'A'}   all keys were ours
-- {nonce, 'F'}   not all were
local count, keep = #KEYS / 2, tonumber(ARGV[4])
local ours = 0
for i = 1, count do
  -- pcall, so that a key which somebody made a list does not keep the others taken.
  if redis.pcall('GET', KEYS[i]) == ARGV[2] then
    ours = ours + 1
    if keep > 0 then redis.call('PEXPIRE', KEYS[i], keep) else redis.call('DEL', KEYS[i]) end
  end
end
local token = tonumber(ARGV[3])
if token > 0 then
  for i = count + 1, 2 * count do
    if tonumber(redis.call('GET', KEYS[i]) or '0') < token then
      redis.call('SET', KEYS[i], ARGV[3])
    end
  end
end
return {ARGV[1], ours == count and 'A' or 'F'}
