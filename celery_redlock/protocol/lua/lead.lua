-- Begin the quarantine of a server that has become the master of its node since the last promotion
-- that its data knows, and look whether it votes. A master that was cut off for the whole term of
-- another one keeps its ids, so that the guard record alone does not show that it was replaced.
--
-- KEYS  the guard record, the number of that promotion
-- ARGV  the number of the promotion that made it the master, ms of the quarantine
--
-- 1   it votes
-- 0   it is in quarantine, or will be at its first acquire
-- (`identity.lua` precedes this script.)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('GET', KEYS[1])
local not_before, ids = identified(record, redis.call('INFO', 'replication'))
if tonumber(ARGV[1]) > tonumber(redis.call('GET', KEYS[2]) or '0') then
  redis.call('SET', KEYS[2], ARGV[1])
  if record then
    not_before = now + ARGV[2] * 1000
    ids = ids or string.sub(record, 1, 80)
    redis.call('SET', KEYS[1], ids .. ' ' .. string.format('%.0f', not_before))
  end
end
return record and not_before and not_before <= now and 1 or 0
