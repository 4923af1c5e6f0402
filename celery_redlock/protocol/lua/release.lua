-- Delete the keys that carry our owner value, or apply other actions; then raise the fence counters.
-- The keys come first, so that a broken counter cannot keep a lock.
--
-- Where a holder (one with a token) deletes a key, those that have waited longest are woken. An attempt
-- that is undone wakes nobody: those woken might only be undone in turn.
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

for i = 1, count do
  local limit = tonumber(ARGV[5 + 3 * i] or '0')
  local lock, stays = lock_of(KEYS[i])
  if ARGV[5] and ARGV[5] ~= '' then forget(lock or KEYS[i], ARGV[5]) end
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
