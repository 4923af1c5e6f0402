-- Who waits for a key: a sorted set beside it. A waiter's score is since when it waits, in ms, or, if
-- it was woken, when that was, in µs. Commands on wait queues may fail, as for a user without the
-- right; the waiter then is not woken, and tries again by itself.
local WOKEN = 100000000000000  -- above every time in ms, and below those in µs

local function woken_in(queue, most)
  local from = string.format('%.0f', WOKEN)
  return redis.pcall('ZRANGEBYSCORE', queue, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
end

local function queue_of(key)
  return 'redlock-meta:waiting:' .. key
end

local function publish(key, name)
  redis.pcall('PUBLISH', 'redlock-meta:wake:' .. string.sub(redis.sha1hex(key), 1, 2), name)
end

local function keep(queue, ms)
  local left = redis.pcall('PTTL', queue)
  if type(left) == 'number' and left < ms then
    redis.pcall('PEXPIRE', queue, string.format('%.0f', ms))
  end
end

