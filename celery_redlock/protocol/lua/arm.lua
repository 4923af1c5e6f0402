-- Let a brand-new node vote at once, by writing the guard record of the process that runs now.
-- Only for nodes that have never held a lock: one that crashed and restarted empty looks the same.
--
-- KEYS  the guard record
-- ARGV  'new' to write only where there is no record, 'force' to write always
--
-- 'armed'         written
-- 'serving'       the record is this process's already, and it votes
-- 'quarantined N' the record is this process's already, and it does not vote for N more seconds
-- 'other'         the record names another process or role
-- 'missing'       (only with 'look') there is no record
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local server, replication = redis.call('INFO', 'server'), redis.call('INFO', 'replication')
local _, run = string.find(server, 'run_id:', 1, true)
local _, replid = string.find(replication, 'master_replid:', 1, true)
local identity = string.sub(server, run + 1, run + 40) .. string.sub(replication, replid + 1, replid + 40)
local record = redis.call('GET', KEYS[1])
if ARGV[1] ~= 'force' and record then
  if string.sub(record, 1, #identity) ~= identity then return 'other' end
  local remaining = (tonumber(string.sub(record, #identity + 2)) or 0) - now
  if remaining > 0 then return 'quarantined ' .. math.ceil(remaining / 1000000) end
  return 'serving'
end
if ARGV[1] == 'look' then return 'missing' end
redis.call('SET', KEYS[1], identity .. ' 0')
return 'armed'
