-- The guard record names the server that the data belongs to, and the time from which it may vote;
-- after FLUSHALL or an empty start there is none. A server that may have lost keys of a lease that
-- is still valid stays in quarantine for one longest lease. The check is in the same script as the
-- SET, so that it holds on live connections and through proxies. A clock that was ahead when the
-- record was written, by more than ten minutes, and was set back since, does not lengthen the
-- quarantine; below that, another client's longer `max_ttl` may have set the time.
-- (`identity.lua` precedes this script.)

-- Return for how many more ms this node must not set a key for a new lease; nil if it may. `record`
-- is what the guard record, the key `guard`, contains.
local function quarantined(guard, record, quarantine, now)
  if quarantine <= 0 then return nil end
  local not_before, ids = identified(record, redis.pcall('INFO', 'replication'))
  local latest = now + quarantine * 1000
  if ids or not_before > latest + 600000000 then
    not_before = not_before and not_before <= latest + 600000000 and not_before or latest
    ids = ids or string.match(record, '^(.*) ')
    redis.call('SET', guard, ids .. ' ' .. string.format('%.0f', not_before))
  end
  if now < not_before then return math.ceil((not_before - now) / 1000) end
end

