-- Who serves, beside a guard record "<run_id><master_replid> <not before, in µs>".
--
-- The second id is new at every start of a master and at every promotion; in both cases the node may
-- have lost keys of a lease that is still valid. It is new, too, when the replication backlog is
-- created, for a first replica or a backup, and when it is freed, which loses nothing. The first id,
-- new at every start, is then the recorded one, and `master_replid2` is zeros: a promotion leaves the
-- id of the former master there until the backlog is freed.

-- Return from when a master may vote that has lost nothing since the record was written (false: there
-- is none), nil if there is no such master; and the ids to be recorded, if they are other ones.
local function identified(record, replication)
  local _, at = string.find(type(replication) == 'string' and replication or '', 'master_replid:', 1, true)
  if not at then
    -- This user cannot see the ids and has to believe the record. If it wrote another one, users with
    -- and without INFO would each see a restart, and this node would never vote.
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

