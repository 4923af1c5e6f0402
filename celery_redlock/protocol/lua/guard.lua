-- The guard record is a string "<run_id><master_replid> <not before, in µs>". The second id is new
-- at every start of a master and at every promotion, and the record is gone after FLUSHALL or an
-- empty start; in each case this node may have lost keys of a lease that is still valid, so it stays
-- in quarantine for one longest lease. The check is in the same script as the SET, so that it holds
-- on live connections and through proxies. The first id costs more to read than all the rest, and
-- is only written, for those who check that the second one is new indeed.

-- Return for how many ms this node may set no key for a new lease; nil if it may.
local function quarantined(guard, quarantine, now)
  if quarantine <= 0 then return nil end
  local replication = redis.pcall('INFO', 'replication')
  local _, at = string.find(type(replication) == 'string' and replication or '', 'master_replid:', 1, true)
  local record = redis.call('GET', guard)
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
    redis.call('SET', guard, identity .. ' ' .. string.format('%.0f', not_before))
  end
  if now < not_before then return math.ceil((not_before - now) / 1000) end
end

