-- Compares a server with a guard record "<run_id><master_replid> <not before, in µs>".
--
-- `master_replid` changes at every start of a master and at every promotion, and in both cases the
-- node may have lost keys of a lease that is still valid. It also changes when the replication
-- backlog is created (for a first replica or a backup) or freed, which loses nothing. After such a
-- change `run_id`, which is new at every start, is the recorded one, and `master_replid2` is zeros;
-- a promotion leaves the former master's id there until the backlog is freed.

-- Return the time from which this server may vote, or nil if it is no master, or may have lost data
-- since the record (false: none) was written; and the ids to record, if they have changed.
local function identified(record, replication)
  local _, at = string.find(type(replication) == 'string' and replication or '', 'master_replid:', 1, true)
  if not at then
    -- This user cannot see the ids and has to believe the record. If it replaced the record, users
    -- with and without INFO would each see a restart, and this node would never vote.
    local believed = record and tonumber(string.match(record, ' (%d+)$'))
    return believed, not believed and 'hidden'
  end
  local id, not_before = string.sub(replication, at + 1, at + 40), record and tonumber(string.sub(record, 82))
  local is_master = string.find(replication, 'role:master', 1, true)
  if is_master and not_before and string.sub(record, 41, 80) == id then return not_before end
  local server = redis.call('INFO', 'server')
  local _, run_at = string.find(server, 'run_id:', 1, true)
  local run = string.sub(server, run_at + 1, run_at + 40)
  local is_same = is_master and not_before and string.sub(record, 1, 40) == run
  local followed_none = string.find(replication, 'master_replid2:' .. string.rep('0', 40), 1, true)
  return is_same and followed_none and not_before or nil, run .. id
end

