-- The waiters of a key: a sorted set beside it has the score of each, and another the time in µs at
-- which a waiter was woken, until it comes. The smallest score comes first: it is the time in ms at
-- which the waiter began to wait, and 2^32 ms more for each rank. Commands on both may fail, as
-- for a user without the right; waiters are not woken then, and try again by themselves.
local COMES_WITHIN = 250000  -- µs within which a woken waiter comes
local MORE_FOR_LATE = 16  -- most that are woken in the place of those that did not come

local function queue_of(key)
  return 'redlock-meta:waiting:' .. key
end

local function woken_of(key)
  return 'redlock-meta:woken:' .. key
end

-- Return when a waiter was woken, or nil.
local function woken_at(key, name)
  local at = redis.pcall('ZSCORE', woken_of(key), name)
  return type(at) == 'string' and tonumber(at) or nil
end

local function publish(key, name)
  redis.pcall('PUBLISH', 'redlock-meta:wake:' .. string.sub(redis.sha1hex(key), 1, 2), name)
end

local function mark_woken(key, name, now)
  redis.pcall('ZADD', woken_of(key), string.format('%.0f', now), name)
  redis.pcall('PEXPIRE', woken_of(key), 60000)
end

-- Return whether the time is stored: without it, the waiter would never count as late.
local function wake_one(key, name, now)
  mark_woken(key, name, now)
  publish(key, name)
  return woken_at(key, name) ~= nil
end

local function keep(queue, ms)
  local left = redis.pcall('PTTL', queue)
  if type(left) == 'number' and left < ms then
    redis.pcall('PEXPIRE', queue, string.format('%.0f', ms))
  end
end

local function remember(key, name, since, ms)
  local queue = queue_of(key)
  redis.pcall('ZADD', queue, since, name)
  redis.pcall('ZREM', woken_of(key), name)
  redis.pcall('ZREMRANGEBYRANK', queue, 1000, -1)
  keep(queue, ms)
end

-- Return whether the waiter was in the queue.
local function forget(key, name)
  redis.pcall('ZREM', woken_of(key), name)
  return redis.pcall('ZREM', queue_of(key), name) == 1
end

-- Wake the waiters that come first, until one more is on its way than the key has free
-- slots (0: an ordinary key, which is free), because the first may be gone. One that has not come
-- within 250 ms is woken once more and forgotten; a worker that has its message enters it again.
-- Two others are woken for each of those, up to a bound: so a crowd that is gone is passed soon.
-- While the key is paused, they would come in vain, and are not woken.
local function wake(key, slots)
  local queue = queue_of(key)
  if not redis.pcall('ZRANGE', queue, 0, 0)[1] or paused_for(key) then return end
  local time = redis.call('TIME')
  local now, wanted, more = time[1] * 1000000 + time[2], 2, MORE_FOR_LATE
  if slots > 0 then
    wanted = 1
    local holders = redis.call('MGET', unpack(slots_of(key, slots)))
    for n = 1, slots do
      if not holders[n] then wanted = wanted + 1 end
    end
  end
  local waiters = redis.pcall('ZRANGE', queue, 0, wanted + 99)
  for i = 1, #waiters do
    if wanted == 0 then return end
    local at = woken_at(key, waiters[i])
    if at and now - at > COMES_WITHIN then
      forget(key, waiters[i])
      publish(key, waiters[i])
      if more > 0 then wanted, more = wanted + 2, more - 2 end
    else
      if not at then wake_one(key, waiters[i], now) end
      wanted = wanted - 1
    end
  end
end

