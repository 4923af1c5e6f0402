-- Delete the keys that carry our owner value, or apply other actions; then raise the fence counters.
-- The keys come first, so that a broken counter cannot keep a lock.
--
-- Where a holder (one with a token) deletes a key, its two longest-waiting waiters are woken: the
-- second one in case the first is gone. They move to the end of the wait queue, and return to their
-- places if they are refused again. As many more are woken as have not returned; those are removed
-- after 5 s, or when their turn comes once more. An attempt that is undone wakes nobody: those woken
-- might only be undone in turn. (The functions of `wait_queue.lua` precede this script.)
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, token (0: none), ms to keep the keys for a minimum hold (0: delete now);
--       optionally an action for each key: ms to keep it, value to set ('': keep its own)
--
-- {nonce, 'A'}   all keys were ours
-- {nonce, 'F'}   not all were
local count, keep, token = #KEYS / 2, tonumber(ARGV[4]), tonumber(ARGV[3])
local ours = 0

local function wake(key)
  local queue = queue_of(key)
  if not redis.pcall('ZRANGE', queue, 0, 0)[1] then return end
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local missing = woken_in(queue, 100)
  for i = 1, #missing, 2 do
    if now - tonumber(missing[i + 1]) > 5000000 then redis.pcall('ZREM', queue, missing[i]) end
  end
  local waiters = redis.pcall('ZRANGE', queue, 0, 1 + #missing / 2, 'WITHSCORES')
  for i = 1, #waiters, 2 do
    if tonumber(waiters[i + 1]) < WOKEN then
      redis.pcall('ZADD', queue, string.format('%.0f', now + i), waiters[i])
    else
      redis.pcall('ZREM', queue, waiters[i])
    end
    publish(key, waiters[i])
  end
end

for i = 1, count do
  -- pcall, so that a key that was overwritten with a list does not keep the others held.
  if redis.pcall('GET', KEYS[i]) == ARGV[2] then
    ours = ours + 1
    local value = ''
    if ARGV[5] then keep, value = tonumber(ARGV[2 * i + 3]), ARGV[2 * i + 4] end
    if keep <= 0 then
      redis.call('DEL', KEYS[i])
      if token > 0 then wake(KEYS[i]) end
    elseif value == '' then redis.call('PEXPIRE', KEYS[i], keep)
    else redis.call('SET', KEYS[i], value, 'PX', keep) end
  end
end
if token > 0 then
  for i = count + 1, 2 * count do
    if tonumber(redis.call('GET', KEYS[i]) or '0') < token then
      redis.call('SET', KEYS[i], ARGV[3])
    end
  end
end
return {ARGV[1], ours == count and 'A' or 'F'}
