-- Who waits for a key with a period, and until when each shall have come, in ms of this node's clock.
-- One that has not come by then is forgotten. No slot is kept for anybody: the turns order when those
-- that wait come back, and any of them that is here takes what is free.
local GRACE = 1000

-- Return in how many ms a slot is free for our waiter: the slots are free after these times, and
-- those that wait already come first. It is remembered if it waits until then.
local function turn_of(queue, waiter, waits_for, pttls, period, now)
  local ms = math.floor(now / 1000)
  redis.pcall('ZREMRANGEBYSCORE', queue, '-inf', string.format('(%.0f', ms))
  table.sort(pttls)
  local ahead = waiter and redis.pcall('ZRANK', queue, waiter) or redis.pcall('ZCARD', queue)
  if type(ahead) ~= 'number' then ahead = 0 end
  local turn = pttls[ahead % #pttls + 1] + math.floor(ahead / #pttls) * period
  if waiter and turn <= waits_for then
    redis.pcall('ZADD', queue, string.format('%.0f', ms + turn + GRACE), waiter)
    keep(queue, turn + GRACE)
  elseif waiter then
    redis.pcall('ZREM', queue, waiter)
  end
  return turn
end

