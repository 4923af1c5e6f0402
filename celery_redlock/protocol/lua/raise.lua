-- Second round of an acquire: raise the fence counters to the token, but only if every lock key
-- carries our owner value. Without that condition, two holders could get one token.
--
-- Nodes may have granted different slots of a key with a limit. A node where the named slot is free
-- sets it, and deletes the one that it granted. A node in quarantine refuses that new grant.
--
-- KEYS  lock keys, then the fence counter of each, then, if a key has a limit, the guard record
-- ARGV  nonce, owner, token; if a key has a limit: ttl in ms, quarantine in ms (0: guard off), then
--       for each key: its slots (0: an ordinary key), ms for which a slot stays taken (0: as long
--       as the lease), and the slot that we get
--
-- {nonce, 'A'}      the keys are ours and the counters are at the token
-- {nonce, 'F'}      not ours any more, or a counter is above the token already; nothing changed
-- {nonce, 'F', ms}  another owner has the slot of a key with a rate for that time; nothing changed
-- {nonce, 'Q', ms}  in quarantine for that time
-- (`identity.lua`, `guard.lua` and `slots.lua` precede this script.)
local owner, token, limited = ARGV[2], tonumber(ARGV[3]), ARGV[4] and 1 or 0
local count = (#KEYS - limited) / 2
local counters, moved, given_back = {}, {}, {}
for i = 1, count do
  local place, counter, limit = KEYS[i], KEYS[count + i], tonumber(ARGV[3 + 3 * i] or '0')
  if limit > 0 then
    local slot = ARGV[5 + 3 * i]
    place, counter = KEYS[i] .. slot, fence_of(counter, tonumber(slot))
    local holders = redis.call('MGET', unpack(slots_of(KEYS[i], limit)))
    for n = 1, limit do
      if holders[n] == owner and n - 1 ~= tonumber(slot) then
        given_back[#given_back + 1] = KEYS[i] .. n - 1
      end
    end
  end
  local holder = redis.call('GET', place)
  local period = tonumber(ARGV[4 + 3 * i] or '0')
  if holder ~= owner and (limit == 0 or holder) then
    return {ARGV[1], 'F', period > 0 and redis.call('PTTL', place) or nil}
  end
  if not holder then
    moved[#moved + 1] = {place, period > 0 and period or ARGV[4]}
  end
  -- If a counter is above the token, this node granted us a larger one too late to be counted, or
  -- it has granted another attempt since. If its vote counted, two holders could have one token. A
  -- counter at the token may be another holder's, too, if this node did not grant us the slot.
  local fence = tonumber(redis.call('GET', counter) or '0')
  if fence > token or (fence == token and not holder) then return {ARGV[1], 'F'} end
  counters[i] = counter
end
if #moved > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local quarantine = quarantined(KEYS[#KEYS], redis.call('GET', KEYS[#KEYS]), tonumber(ARGV[5]), now)
  if quarantine then return {ARGV[1], 'Q', quarantine} end
end
for i = 1, #moved do redis.call('SET', moved[i][1], owner, 'PX', moved[i][2]) end
for i = 1, #given_back do redis.call('DEL', given_back[i]) end
for i = 1, count do redis.call('SET', counters[i], ARGV[3]) end
return {ARGV[1], 'A'}
