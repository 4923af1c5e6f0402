-- Delete the keys that carry our owner value, or apply other actions; then raise the fence
-- counters. The keys come first, so that a broken counter cannot keep a lock.
--
-- If a holder (a release with a token) deletes a key, this wakes the waiters that come first. The
-- undo of an attempt wakes none, because their attempts might only be undone in turn.
-- (`slots.lua` and `wait_queue.lua` precede this script.)
--
-- A node without our slot of a key with a limit may have granted us another one, and deletes that.
-- A slot of a key with a rate stays if the number of slots is given, as in a holder's release, and
-- is set for the rest of its period where it is free, or where another attempt has it, which cannot
-- have a quorum: nodes with the same slots taken grant the same slots, and agree when none is free.
-- A release may come late, so the slot stays taken for as long as it was. Without that number, the
-- slot is deleted.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce, owner, token (0: none), ms to keep the keys for a minimum hold (0: delete now);
--       optionally a waiter that waits no more ('': none), and then for each key: ms to keep it
--       (for a slot that stays: the rest of its period), value to set ('': keep its own), the slots
--       of its key (0: an ordinary key). Without an owner (''), nothing is released; then the score
--       of the waiter follows, and one of that name with another score has begun to wait since
--
-- {nonce, 'A'}   all keys were ours
-- {nonce, 'F'}   not all were
local count, keep, token = #KEYS / 2, tonumber(ARGV[4]), tonumber(ARGV[3])
local ours = 0

-- A full server denies a SET, but not if the script has written before, as with a PEXPIRE.
local function set(key, value, ms)
  redis.call('PEXPIRE', key, ms)
  if value ~= '' then redis.call('SET', key, value, 'PX', ms) end
end

local function may_forget(key)
  if ARGV[2] ~= '' then return true end
  local score = redis.pcall('ZSCORE', queue_of(key), ARGV[5])
  return type(score) == 'string' and tonumber(score) == tonumber(ARGV[6])
end

for i = 1, count do
  local limit = tonumber(ARGV[5 + 3 * i] or '0')
  local lock, stays = lock_of(KEYS[i])
  if ARGV[5] and ARGV[5] ~= '' and may_forget(lock or KEYS[i]) then forget(lock or KEYS[i], ARGV[5]) end
  -- pcall, so that a key that was overwritten with a list does not keep the others held.
  local found = redis.pcall('GET', KEYS[i])
  local is_ours = found == ARGV[2]
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
    local taken = redis.call('PTTL', KEYS[i])
    if left > 0 and not is_ours and taken ~= -1 and type(found) ~= 'table' then
      set(KEYS[i], ARGV[2], math.max(left, taken))
    end
  elseif is_ours then
    ours = ours + 1
    local value = ''
    if ARGV[6] then keep, value = tonumber(ARGV[3 + 3 * i]), ARGV[4 + 3 * i] end
    if keep <= 0 then
      redis.call('DEL', KEYS[i])
      if token > 0 and not stays then wake(lock or KEYS[i], lock and math.max(limit, 1) or 0) end
    else
      set(KEYS[i], value, keep)
    end
  end
end
if token > 0 then
  for i = count + 1, 2 * count do
    if tonumber(redis.call('GET', KEYS[i]) or '0') < token then
      redis.pcall('SET', KEYS[i], ARGV[3])
    end
  end
end
return {ARGV[1], ours == count and 'A' or 'F'}
