-- Acquire all lock keys on this node, or none. A key of the named previous owner counts as free.
--
-- KEYS  lock keys, then the fence counter of each, then the guard record
-- ARGV  nonce, owner, ttl in ms, candidate token in µs, quarantine in ms (0: guard off),
--       previous owner ('': none; may be absent); a waiter may follow: its name, since when it waits
--       in ms, for how long its wait queue is kept in ms (0: it waits no longer), and for how long
--       in ms it lets those before it go first once they are woken (0: it takes what is free)
--
-- {nonce, 'G', counter, ...}                      granted, one counter for each key
-- {nonce, 'H', index, holder, pttl in ms, ...}    other owners have these keys
-- {nonce, 'Q', ms}                                in quarantine for that time
--
-- The guard record is a string "<run_id><master_replid> <not before, in µs>". The second id is new
-- at every start of a master and at every promotion, and the record is gone after FLUSHALL or an
-- empty start; in each case this node may have lost keys of a lease that is still valid, so it stays
-- in quarantine for one longest lease. The check is in the same script as the SET, so that it holds
-- on live connections and through proxies. The first id costs more to read than all the rest, and
-- is only written, for those who check that the second one is new indeed.
--
-- A waiter that is refused a key is put into its wait queue in this same step: a release that comes
-- after the refusal finds it there. (The functions of `wait_queue.lua` precede this script.)
local owner, ttl, quarantine = ARGV[2], ARGV[3], tonumber(ARGV[5])
local count = (#KEYS - 1) / 2
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if quarantine > 0 then
  local replication = redis.pcall('INFO', 'replication')
  local _, at = string.find(type(replication) == 'string' and replication or '', 'master_replid:', 1, true)
  local record = redis.call('GET', KEYS[#KEYS])
  local not_before = nil
  if record and not at then
    -- This user cannot see the id and has to believe the record. If it wrote another one, users
    -- with and without INFO would each see a restart, and this node would never vote.
    not_before = tonumber(string.match(record, ' (%d+)$'))
  elseif record and string.sub(record, 41, 80) == string.sub(replication, at + 1, at + 40) then
    not_before = tonumber(string.sub(record, 82))
  end
  if not not_before then
    not_before = now + quarantine * 1000
    local identity = 'hidden'
    if at then
      local server = redis.call('INFO', 'server')
      local _, run = string.find(server, 'run_id:', 1, true)
      identity = string.sub(server, run + 1, run + 40) .. string.sub(replication, at + 1, at + 40)
    end
    redis.call('SET', KEYS[#KEYS], identity .. ' ' .. string.format('%.0f', not_before))
  end
  if now < not_before then
    return {ARGV[1], 'Q', math.ceil((not_before - now) / 1000)}
  end
end

-- Return who goes before our waiter for a key that is free, and for how long yet in ms.
local function goes_first(key)
  local queue, grace = queue_of(key), tonumber(ARGV[10])
  local score = redis.pcall('ZSCORE', queue, ARGV[7])
  local own = type(score) == 'string' and tonumber(score) or tonumber(ARGV[8])
  local woken, gone = woken_in(queue, -1), 0
  for i = 1, #woken, 2 do
    local at = tonumber(woken[i + 1])
    if woken[i] ~= ARGV[7] and now - at > grace * 1000 then
      redis.pcall('ZREM', queue, woken[i])
      gone = gone + 1
    elseif woken[i] ~= ARGV[7] and (own < WOKEN or at < own) then
      return woken[i], math.ceil(grace - (now - at) / 1000)
    end
  end
  -- For each that did not come two are woken, so that a crowd of those who are gone is passed soon.
  local longest, first = redis.pcall('ZRANGE', queue, 0, 2 * gone, 'WITHSCORES'), nil
  for i = 1, #longest, 2 do
    if longest[i] ~= ARGV[7] and tonumber(longest[i + 1]) < tonumber(ARGV[8]) then
      redis.pcall('ZADD', queue, string.format('%.0f', now + i), longest[i])
      publish(key, longest[i])
      first = first or longest[i]
    end
  end
  return first, grace
end

local taken, adopted, held = {}, {}, {}
for i = 1, count do
  if redis.call('SET', KEYS[i], owner, 'NX', 'PX', ttl) then
    local first, left
    if ARGV[10] and ARGV[10] ~= '0' then first, left = goes_first(KEYS[i]) end
    if first then
      redis.call('DEL', KEYS[i])
      held[#held + 1] = i - 1
      held[#held + 1] = 'waiting ' .. first
      held[#held + 1] = left
    else
      taken[#taken + 1] = KEYS[i]
    end
  else
    local holder = redis.pcall('GET', KEYS[i])
    if holder == ARGV[6] and holder ~= '' then
      adopted[#adopted + 1] = KEYS[i]
    else
      held[#held + 1] = i - 1
      held[#held + 1] = type(holder) == 'string' and holder or 'not a string'
      held[#held + 1] = redis.call('PTTL', KEYS[i])
    end
  end
end
if #held > 0 then
  if #taken > 0 then redis.call('DEL', unpack(taken)) end
  -- It waits for the others now, and those that wait for these must not wait for it.
  for i = 1, ARGV[7] and #taken or 0 do redis.pcall('ZREM', queue_of(taken[i]), ARGV[7]) end
  for i = 1, ARGV[7] and #held or 0, 3 do
    local queue = queue_of(KEYS[held[i] + 1])
    if ARGV[9] == '0' then
      redis.pcall('ZREM', queue, ARGV[7])
    else
      redis.pcall('ZADD', queue, ARGV[8], ARGV[7])
      redis.pcall('ZREMRANGEBYRANK', queue, 1000, -1)
      local left = redis.pcall('PTTL', queue)
      if type(left) == 'number' and left < tonumber(ARGV[9]) then
        redis.pcall('PEXPIRE', queue, ARGV[9])
      end
    end
  end
  return {ARGV[1], 'H', unpack(held)}
end
for i = 1, ARGV[7] and count or 0 do
  redis.pcall('ZREM', queue_of(KEYS[i]), ARGV[7])
end
-- Only now that no other key refuses, so that nothing has to be undone.
for i = 1, #adopted do redis.call('SET', adopted[i], owner, 'PX', ttl) end

-- Both the + 1 and the candidate matter: without the first, two holders get one token; without the
-- second, tokens decrease after counters were lost. A client's clock must not be ahead of ours.
local candidate = tonumber(ARGV[4])
if candidate > now + 5000000 then candidate = now + 5000000 end
local reply = {ARGV[1], 'G'}
for i = count + 1, 2 * count do
  local fence = tonumber(redis.call('GET', KEYS[i]) or '0') + 1
  if fence < candidate then fence = candidate end
  local text = string.format('%.0f', fence)
  redis.call('SET', KEYS[i], text)
  reply[#reply + 1] = text
end
return reply
