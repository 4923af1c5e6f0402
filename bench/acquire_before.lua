-- The acquire script before master_replid alone recognised a restart, for the row server-cpu.
-- Acquire all lock keys on this node, or none. A key of the named previous owner counts as free.
--
-- KEYS  lock keys, then the fence counter of each, then the guard record
-- ARGV  nonce, owner, ttl in ms, candidate token in µs, quarantine in ms (0: guard off),
--       previous owner (may be absent)
--
-- {nonce, 'G', counter, ...}                      granted, one counter for each key
-- {nonce, 'H', index, holder, pttl in ms, ...}    other owners have these keys
-- {nonce, 'Q', ms}                                in quarantine for that time
--
-- The guard record is a string "<identity> <not before, in µs>". The identity changes with every
-- start of the server process (run_id) and every change of role (master_replid), and the record is
-- gone after FLUSHALL or an empty start; in each case this node may have lost keys of a lease that
-- is still valid, so it stays in quarantine for one longest lease. The check is in the same script
-- as the SET, so that it holds on live connections and through proxies.
local owner, ttl, quarantine = ARGV[2], ARGV[3], tonumber(ARGV[5])
local count = (#KEYS - 1) / 2
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if quarantine > 0 then
  local server, replication = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
  local identity = 'hidden'
  if type(server) == 'string' and type(replication) == 'string' then
    local _, run = string.find(server, 'run_id:', 1, true)
    local _, replid = string.find(replication, 'master_replid:', 1, true)
    if run and replid then
      identity = string.sub(server, run + 1, run + 40) .. string.sub(replication, replid + 1, replid + 40)
    end
  end
  local record = redis.call('GET', KEYS[#KEYS])
  local identified = nil
  if record and identity == 'hidden' then
    -- This user cannot see the identity and has to believe the record. If it wrote another one,
    -- users with and without INFO would each see a restart, and this node would never vote.
    identified = string.find(record, ' ', 1, true)
  elseif record and string.sub(record, 1, #identity + 1) == identity .. ' ' then
    identified = #identity + 1
  end
  local not_before = identified and tonumber(string.sub(record, identified + 1))
  if not not_before then
    not_before = now + quarantine * 1000
    redis.call('SET', KEYS[#KEYS], identity .. ' ' .. string.format('%.0f', not_before))
  end
  if now < not_before then
    return {ARGV[1], 'Q', math.ceil((not_before - now) / 1000)}
  end
end

local taken, adopted, held = {}, {}, {}
for i = 1, count do
  if redis.call('SET', KEYS[i], owner, 'NX', 'PX', ttl) then
    taken[#taken + 1] = KEYS[i]
  else
    local holder = redis.pcall('GET', KEYS[i])
    if holder == ARGV[6] then
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
  return {ARGV[1], 'H', unpack(held)}
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
