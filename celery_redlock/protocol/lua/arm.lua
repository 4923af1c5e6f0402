-- Let a brand-new node vote at once, by writing the guard record of the process that runs now.
-- Only for nodes that have never held a lock: one that crashed and restarted empty looks the same.
--
-- KEYS  the guard record
-- ARGV  'look' to write nothing, 'new' to write only if there is no record, 'force' to write always
--
-- 'armed'         written
-- 'serving'       the record is this server's, which has lost nothing since, and it votes
-- 'quarantined N' the same, and it does not vote for N more seconds
-- 'other'         the server has restarted or changed its role since the record was written
-- 'missing'       (only with 'look') there is no record
-- (`identity.lua` precedes this script.)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = ARGV[1] ~= 'force' and redis.call('GET', KEYS[1])
local not_before, ids = identified(record, redis.call('INFO', 'replication'))
if record then
  if not not_before then return 'other' end
  if not_before > now then return 'quarantined ' .. math.ceil((not_before - now) / 1000000) end
  return 'serving'
end
if ARGV[1] == 'look' then return 'missing' end
redis.call('SET', KEYS[1], ids .. ' 0')
return 'armed'
