-- Delete the keys that carry our owner value, or apply other actions; then raise the fence counters.
-- The keys come first, so that a broken counter cannot keep a lock.
--
-- Where a holder (one with a token) deletes a key, its two longest-waiting waiters are woken: the
-- second one in case the first is gone. They move to the end of the wait queue, and return to their
-- places if they are refused again. As many more are woken as have not returned; those are removed
-- after 5 s, or when their turn comes once more. Of a key with a limit, as many are woken as slots are
-- free, less those that were woken within 250 ms, who may be on their way, and one more where there
-- are none of these. An attempt that is undone wakes nobody: those woken might only be undone in turn.
-- (`slots.lua` and `wait_queue.lua` precede this script.)
--
-- A node that does not have our slot of a key with a limit may have granted another one than most
-- did; that one is deleted. A slot of a key with a period stays where the number of slots is named, as
-- its holder does, and is set for the rest of the period where it is free: nodes that have the same
-- slots grant the same ones, and see alike when all are taken. Without the number, it is deleted.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, token (0: none), ms to keep the keys for a minimum hold (0: delete now);
--       optionally a waiter that waits no more ('': none), and then for each key: ms to keep it,
--       value to set ('': keep its own), the slots of its key (0: an ordinary key); of a slot that
--       stays, the first is the rest of its period
--
-- {nonce, 'A'}   all keys were ours
-- {nonce, 'F'}   not all were
local count, keep, token = #KEYS / 2, tonumber(ARGV[4]), tonumber(ARGV[3])
local ours = 0

local function wake(key, slots)
  local queue = queue_of(key)
  if not redis.pcall('ZRANGE', queue, 0, 0)[1] then return end
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local woken, coming = woken_in(queue, 100), 0
  for i = 1, #woken, 2 do
    local since = now - tonumber(woken[i + 1])
    if since <= 250000 then coming = coming + 1 end
    if since > 5000000 then redis.pcall('ZREM', queue, woken[i]) end
  end
  local wanted = 2 + #woken / 2
  if slots > 0 then
    wanted = coming > 0 and -coming or 1
    local holders = redis.call('MGET', unpack(slots_of(key, slots)))
    for n = 1, slots do
      if not holders[n] then wanted = wanted + 1 end
    end
  end
  if wanted <= 0 then return end
  local waiters = redis.pcall('ZRANGE', queue, 0, wanted - 1, 'WITHSCORES')
  for i = 1, #waiters, 2 do
    local score = tonumber(waiters[i + 1])
    if score < WOKEN or (slots > 0 and now - score > 250000) then
      redis.pcall('ZADD', queue, string.format('%.0f', now + i), waiters[i])
      publish(key, waiters[i])
    elseif slots == 0 then
      redis.pcall('ZREM', queue, waiters[i])
      publish(key, waiters[i])
    end
  end
end

for i = 1, count do
  local limit = tonumber(ARGV[5 + 3 * i] or '0')
  local lock, stays = lock_of(KEYS[i])
  if ARGV[5] and ARGV[5] ~= '' then redis.pcall('ZREM', queue_of(lock or KEYS[i]), ARGV[5]) end
  -- pcall, so that a key that was overwritten with a list does not keep the others held.
  local is_ours = redis.pcall('GET', KEYS[i]) == ARGV[2]
  if limit > 0 and not is_ours then
    local slots = slots_of(lock or KEYS[i], limit)
    local holders = redis.call('MGET', unpack(slots))
    for n = 1, limit do
      if holders[n] == ARGV[2] then redis.call('DEL', slots[n]) end
    end
  end
  if lock and stays and limit > 0 then
    ours = ours + 1
    local left = tonumber(ARGV[3 + 3 * i])
    if left > 0 and redis.call('PTTL', KEYS[i]) == -2 then
      redis.call('SET', KEYS[i], ARGV[2], 'PX', left)
    end
  elseif is_ours then
    ours = ours + 1
    local value = ''
    if ARGV[6] then keep, value = tonumber(ARGV[3 + 3 * i]), ARGV[4 + 3 * i] end
    if keep <= 0 then
      redis.call('DEL', KEYS[i])
      if token > 0 and not stays then wake(lock or KEYS[i], lock and math.max(limit, 1) or 0) end
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
