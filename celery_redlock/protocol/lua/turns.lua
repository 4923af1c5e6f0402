-- The waiters of a key with a rate: the wait queue has them by rank, and then in the order in which
-- they first asked, and this sorted set has the turn of each, in ms of this node's clock. A waiter
-- that comes late, or again, names its score, so the node need not have remembered its place. One of
-- a smaller rank gets a turn that others have; these come in vain, and get the next ones.

-- A free slot is kept for a waiter from EARLY ms before its turn until GRACE ms after it: a waiter
-- whose turn is within 250 ms may come that late. One that is later is forgotten until it comes.
local EARLY, GRACE = 100, 300

-- Maximum waiters of a key that a node remembers: those that come first.
local MOST = 10000

-- Maximum late waiters that one attempt forgets, and maximum whose turn it is, or that have a slot,
-- that it looks at.
local AT_ONCE = 256

local function turns_of(key)
  return 'redlock-meta:turns:' .. key
end

-- Note that a waiter has a slot, and needs its place only if that is undone.
local function note_slot(key, name, now)
  if redis.pcall('ZRANK', queue_of(key), name) then mark_woken(key, name, now) end
end

local function has_slot(key, name, now)
  local at = woken_at(key, name)
  return at and now - at <= COMES_WITHIN
end

-- If others get all `free` slots before our waiter, return the first and the ms that it has left.
local function has_its_turn(key, waiter, since, free, now)
  local ms, ahead, first, left = math.floor(now / 1000), 0, nil, nil
  local from, to = string.format('%.0f', ms - GRACE), string.format('%.0f', ms + EARLY)
  local due = redis.pcall('ZRANGEBYSCORE', turns_of(key), from, to, 'WITHSCORES', 'LIMIT', 0, AT_ONCE)
  local own = waiter and redis.pcall('ZSCORE', queue_of(key), waiter)
  own = type(own) == 'string' and tonumber(own) or since
  for i = 1, #due, 2 do
    local asked = due[i] ~= waiter and redis.pcall('ZSCORE', queue_of(key), due[i])
    asked = type(asked) == 'string' and tonumber(asked)
    local is_before = asked and (not waiter or asked < own or (asked == own and due[i] < waiter))
    if is_before and not has_slot(key, due[i], now) then
      ahead = ahead + 1
      if not first then first, left = due[i], tonumber(due[i + 1]) + GRACE - ms end
      if ahead == free then return first, left end
    end
  end
end

-- Return in how many ms it is the turn of our waiter: the slots are free after `pttls`, and those
-- that asked before it come first. The node remembers it if it waits until then.
local function turn_of(key, waiter, since, waits_for, pttls, period, now)
  local queue, turns, ms = queue_of(key), turns_of(key), math.floor(now / 1000)
  local before = string.format('(%.0f', ms - GRACE)
  local late = redis.pcall('ZRANGEBYSCORE', turns, '-inf', before, 'LIMIT', 0, AT_ONCE)
  if #late > 0 then
    redis.pcall('ZREM', turns, unpack(late))
    redis.pcall('ZREM', queue, unpack(late))
  end
  if waiter then
    redis.pcall('ZADD', queue, since, waiter)
    redis.pcall('ZREM', woken_of(key), waiter)
  end
  local rank = waiter and redis.pcall('ZRANK', queue, waiter) or redis.pcall('ZCARD', queue)
  if type(rank) ~= 'number' then rank = 0 end
  local ahead = rank
  local latest = string.format('%.0f', now - COMES_WITHIN)
  local have_slots = redis.pcall('ZRANGEBYSCORE', woken_of(key), latest, '+inf', 'LIMIT', 0, AT_ONCE)
  for i = 1, #have_slots do
    local at = redis.pcall('ZRANK', queue, have_slots[i])
    if type(at) == 'number' and at < rank then ahead = ahead - 1 end
  end
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
