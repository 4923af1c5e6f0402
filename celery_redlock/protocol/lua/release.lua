-- Delete the keys that carry our owner value, or apply other actions; then raise the fence counters.
-- The keys come first, so that a broken counter cannot keep a lock.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, token (0: none), ms to keep the keys for a minimum hold (0: delete now);
--       optionally an action for each key: ms to keep it, value to set ('': keep its own)
--
-- {nonce, 'A'}   all keys were ours
-- {nonce, 'F'}   not all were
local count, keep = #KEYS / 2, tonumber(ARGV[4])
local ours = 0
for i = 1, count do
  -- pcall, so that a key that was overwritten with a list does not keep the others held.
  if redis.pcall('GET', KEYS[i]) == ARGV[2] then
    ours = ours + 1
    local value = ''
    if ARGV[5] then keep, value = tonumber(ARGV[2 * i + 3]), ARGV[2 * i + 4] end
    if keep <= 0 then redis.call('DEL', KEYS[i])
    elseif value == '' then redis.call('PEXPIRE', KEYS[i], keep)
    else redis.call('SET', KEYS[i], value, 'PX', keep) end
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
