-- The guard record names the server to which the data belongs, and from when it may vote; it is gone
-- after FLUSHALL or an empty start. A server that may have lost keys of a lease that is still valid
-- stays in quarantine for one longest lease. The check is in the same script as the SET, so that it
-- holds on live connections and through proxies.
-- (`identity.lua` precedes this script.)

-- Return for how many ms this node may set no key for a new lease; nil if it may.
local function quarantined(guard, quarantine, now)
  if quarantine <= 0 then return nil end
  local not_before, ids = identified(redis.call('GET', guard), redis.pcall('INFO', 'replication'))
  if ids then
    not_before = not_before or now + quarantine * 1000
    redis.call('SET', guard, ids .. ' ' .. string.format('%.0f', not_before))
  end
  if now < not_before then return math.ceil((not_before - now) / 1000) end
end

