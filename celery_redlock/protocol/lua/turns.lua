-- Who waits for a key with a period: in the wait queue in the order in which they asked, and beside it
-- when it is the turn of each, in ms of this node's clock. One that comes late, or again, has its place
-- in the order by the time at which it asked first; it need not have been remembered.

-- From so many ms before its turn a free slot is kept for a waiter, and until so many after it: one
-- whose turn is within 250 ms may come at the end of them. One that is later is forgotten until it
-- comes, and has its place in the order then.
local EARLY, GRACE = 100, 300

-- Of more waiters a node remembers those that asked first.
local MOST = 10000

-- So many that are late are forgotten in one attempt, and so many whose turn it is are looked at.
local AT_ONCE = 256

local function turns_of(key)
  return 'redlock-meta:turns:' .. key
end

-- Return who is to have the last of so many free slots before our waiter, and for how many ms yet.
local function has_its_turn(key, waiter, since, free, now)
  local ms, ahead, first, left = math.floor(now / 1000), 0, nil, nil
  local from, to = string.format('%.0f', ms - GRACE), string.format('%.0f', ms + EARLY)
  local due = redis.pcall('ZRANGEBYSCORE', turns_of(key), from, to, 'WITHSCORES', 'LIMIT', 0, AT_ONCE)
  local own = waiter and redis.pcall('ZSCORE', queue_of(key), waiter)
  own = type(own) == 'string' and tonumber(own) or since
  for i = 1, #due, 2 do
    local asked = due[i] ~= waiter and redis.pcall('ZSCORE', queue_of(key), due[i])
    asked = type(asked) == 'string' and tonumber(asked)
    if asked and (not waiter or asked < own or (asked == own and due[i] < waiter)) then
      ahead = ahead + 1
      if not first then first, left = due[i], tonumber(due[i + 1]) + GRACE - ms end
      if ahead == free then return first, left end
    end
  end
end

-- Return in how many ms a slot is free for our waiter: the slots are free after these times, and
-- those that asked before it come first. It is remembered if it waits until then.
local function turn_of(key, waiter, since, waits_for, pttls, period, now)
  local queue, turns, ms = queue_of(key), turns_of(key), math.floor(now / 1000)
  local before = string.format('(%.0f', ms - GRACE)
  local late = redis.pcall('ZRANGEBYSCORE', turns, '-inf', before, 'LIMIT', 0, AT_ONCE)
  if #late > 0 then
    redis.pcall('ZREM', turns, unpack(late))
    redis.pcall('ZREM', queue, unpack(late))
  end
  if waiter then redis.pcall('ZADD', queue, since, waiter) end
  local ahead = waiter and redis.pcall('ZRANK', queue, waiter) or redis.pcall('ZCARD', queue)
  if type(ahead) ~= 'number' then ahead = 0 end
  table.sort(pttls)
  local turn = pttls[ahead % #pttls + 1] + math.floor(ahead / #pttls) * period
  if waiter and (turn > waits_for or ahead >= MOST) then
    redis.pcall('ZREM', queue, waiter)
    redis.pcall('ZREM', turns, waiter)
  elseif waiter then
    redis.pcall('ZADD', turns, string.format('%.0f', ms + turn), waiter)
    redis.pcall('ZREMRANGEBYRANK', queue, MOST, -1)
    keep(queue, turn + GRACE)
    keep(turns, turn + GRACE)
  end
  return turn
end
