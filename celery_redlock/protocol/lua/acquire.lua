-- Acquire all lock keys on this node, or none. A key of the named previous owner counts as free, and
-- so does our own: a command that is sent once more, because its connection broke or because rivals
-- have the other nodes, gets what it had.
--
-- KEYS  lock keys, then the fence counter of each, then the guard record, then, if pauses refuse the
--       attempt, the key that a node has as long as its longest pause
-- ARGV  nonce, owner, ttl in ms, candidate token in µs, quarantine in ms (0: guard off),
--       previous owner ('': none; may be absent). A waiter may follow: its name ('': none yet),
--       its score (0: it does not wait), ms to keep its wait queue (0: it waits no longer), ms for
--       which those that come before it go first (0: there is no order). If
--       any key has a limit, each key follows with: its slots (0: an ordinary key), ms for which a
--       slot stays taken (0: as long as the lease), the slot to try first.
--
-- {nonce, 'G', counter, ...}                      granted, one counter for each key
-- {nonce, 'P', counter, slot, ...}                the same if a key has a limit; '': it has none
-- {nonce, 'H', index, holder, pttl in ms, ...}    other owners have these keys; each slot of a key
--                                                 with a limit has an index of its own
-- {nonce, 'L', count, index, holder, pttl, ...}   the same for a waiter: `count` come before it
-- {nonce, 'W', ms, index, holder, pttl, ...}      the same if a key with a rate refuses: in `ms` it
--                                                 is the turn of this attempt
-- {nonce, 'Q', ms}                                in quarantine for that time
--
-- A paused key is taken by the holder 'paused', as are all its slots, also from the previous owner.
-- It gives no turns; a waiter enters its wait queue, and that of the pause.
--
-- A waiter enters the wait queue of each key that refuses it, in this same step: a later release
-- finds it there. If it leaves a free key because it lacks another one, the next waiter of the free
-- key is woken. A key with a rate gives a waiter its turn instead, and refuses a free slot to those
-- that asked later than others whose turn it is.
-- (`identity.lua`, `guard.lua`, `slots.lua`, `pauses.lua`, `wait_queue.lua` and `turns.lua` precede
-- this script.)
local owner, ttl = ARGV[2], ARGV[3]
local waiter, since = ARGV[7] ~= '' and ARGV[7], tonumber(ARGV[8] or '0')
local START = 10000  -- µs
local count = math.floor((#KEYS - 1) / 2)
local guard = KEYS[2 * count + 1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record, has_pauses = unpack(redis.call('MGET', unpack(KEYS, 2 * count + 1)))
local quarantine = quarantined(guard, record, tonumber(ARGV[5]), now)
if quarantine then return {ARGV[1], 'Q', quarantine} end

local in_order = waiter and ARGV[10] ~= '0'

-- Return whether another waiter may go first for a free key: woken ones have a head start of 10 ms.
local function is_promised(key)
  if since == 0 or in_order then return in_order end
  local latest = redis.pcall('ZRANGE', woken_of(key), -1, -1, 'WITHSCORES')[2]
  return latest and now - tonumber(latest) <= START
end

-- Return the waiter that goes first for a key with `free` free slots, and the ms that it has left.
-- Those that come before ours and were woken go first; in order, the others are woken now.
local function goes_first(key, free)
  local grace, ahead, more, first, left = in_order and 1000 * tonumber(ARGV[10]) or START, 0, 0, nil, nil
  local waiters = redis.pcall('ZRANGE', queue_of(key), 0, free + 99, 'WITHSCORES')
  for i = 1, #waiters, 2 do
    local name = waiters[i]
    if tonumber(waiters[i + 1]) >= since or (ahead >= free and more <= 0) then break end
    local at = woken_at(key, name)
    if name ~= waiter and at and now - at > grace then
      -- For each that did not come, two others are woken: so a crowd that is gone is passed soon.
      if in_order then forget(key, name) end
      more = more + 2
    elseif name ~= waiter and (at or (in_order and wake_one(key, name, now))) then
      if ahead >= free then more = more - 1 end
      ahead = ahead + 1
      if not first then first, left = name, math.ceil((grace - (now - (at or now))) / 1000) end
    end
  end
  if ahead >= free then return first, left end
end

-- Return our slot or nil, the holders of all slots, whether the previous owner has our slot, and
-- the waiter that goes first with the ms that it has left.
local function choose(key, limit, period, begin)
  -- Usually the first slot is free, and the others do not matter.
  local promised = period == 0 and is_promised(key)
  if period > 0 then promised = redis.pcall('ZCARD', queue_of(key)) ~= 0 end
  if not promised and ARGV[6] == '' and redis.call('PTTL', key .. begin) == -2 then return begin end
  local holders, free, slot = redis.call('MGET', unpack(slots_of(key, limit))), 0, nil
  for i = begin, begin + limit - 1 do
    local holder = holders[i % limit + 1]
    local is_ours = holder == owner and not slot
    if holder and holder ~= '' and (holder == ARGV[6] or is_ours) then return i % limit, holders, true end
    if not holder then
      free = free + 1
      -- MGET shows a value that is no string as free.
      if not slot and redis.call('PTTL', key .. i % limit) == -2 then slot = i % limit end
    end
  end
  local first, left
  if slot and promised and period == 0 then first, left = goes_first(key, free) end
  if slot and period > 0 then first, left = has_its_turn(key, waiter, since, free, now) end
  if not first then return slot, holders end
  return nil, holders, nil, 'waiting ' .. first, left
end

local taken, adopted, held, refused, counters, slots, place, turn_in = {}, {}, {}, {}, {}, {}, 0, nil
for i = 1, count do
  local key, limit = KEYS[i], tonumber(ARGV[8 + 3 * i] or '0')
  local paused, pause
  if has_pauses then paused, pause = paused_for(key) end
  if paused then
    for n = 1, math.max(limit, 1) do
      held[#held + 1] = place
      held[#held + 1] = 'paused'
      held[#held + 1] = paused
      place = place + 1
    end
    if limit == 0 or ARGV[9 + 3 * i] == '0' then refused[#refused + 1] = key end
    refused[#refused + 1] = pause
  elseif limit > 0 then
    local period = tonumber(ARGV[9 + 3 * i])
    local slot, holders, is_previous, first, left = choose(key, limit, period, tonumber(ARGV[10 + 3 * i]))
    if slot then
      local life = period > 0 and period or ttl
      local list = is_previous and adopted or taken
      list[#list + 1] = {key .. slot, life, key, period == 0 and limit}
      if not is_previous then redis.call('SET', key .. slot, owner, 'PX', life) end
      counters[i], slots[i] = fence_of(KEYS[count + i], slot), slot
    else
      refused[#refused + 1] = key
      local pttls = {}
      for n = 1, limit do
        local pttl = redis.call('PTTL', key .. n - 1)
        held[#held + 1] = place + n - 1
        held[#held + 1] = holders[n] or (pttl == -2 and first) or 'not a string'
        held[#held + 1] = pttl == -2 and left or pttl
        -- A slot is taken up to and including its last millisecond.
        pttls[n] = (pttl == -2 and 0) or (pttl == -1 and period) or pttl + 1
      end
      if period > 0 then
        refused[#refused] = nil
        local turn = turn_of(key, waiter, ARGV[8], tonumber(ARGV[9]), pttls, period, now)
        turn_in = math.max(turn_in or 0, turn)
      end
    end
    place = place + limit
  else
    if redis.call('SET', key, owner, 'NX', 'PX', ttl) then
      local first, left
      if is_promised(key) then first, left = goes_first(key, 1) end
      if first then
        redis.call('DEL', key)
        held[#held + 1] = place
        held[#held + 1] = 'waiting ' .. first
        held[#held + 1] = left
        refused[#refused + 1] = key
      else
        taken[#taken + 1] = {key, ttl, key, 0}
      end
    else
      local holder = redis.pcall('GET', key)
      if holder == owner or (holder == ARGV[6] and holder ~= '') then
        adopted[#adopted + 1] = {key, ttl, key}
      else
        held[#held + 1] = place
        held[#held + 1] = type(holder) == 'string' and holder or 'not a string'
        held[#held + 1] = redis.call('PTTL', key)
        refused[#refused + 1] = key
      end
    end
    counters[i], place = KEYS[count + i], place + 1
  end
end
if #held > 0 then
  for i = 1, #taken do
    local key = taken[i][3]
    redis.call('DEL', taken[i][1])
    -- It waits for other keys now, and the waiters of this key must not wait for it.
    if waiter and forget(key, waiter) and taken[i][4] then wake(key, taken[i][4]) end
  end
  for i = 1, waiter and #refused or 0 do
    if ARGV[9] == '0' then
      forget(refused[i], waiter)
    else
      remember(refused[i], waiter, ARGV[8], tonumber(ARGV[9]))
    end
  end
  local before = 0
  for i = 1, since > 0 and #refused or 0 do
    local queue = queue_of(refused[i])
    local rank = waiter and redis.pcall('ZRANK', queue, waiter) or redis.pcall('ZCARD', queue)
    if type(rank) == 'number' and rank > before then before = rank end
  end
  if turn_in then return {ARGV[1], 'W', math.ceil(turn_in), unpack(held)} end
  if since > 0 then return {ARGV[1], 'L', before, unpack(held)} end
  return {ARGV[1], 'H', unpack(held)}
end
for i = 1, waiter and count or 0 do
  -- A key with a rate keeps the waiter, which needs its place again if this grant is undone.
  if tonumber(ARGV[9 + 3 * i] or '0') == 0 then
    forget(KEYS[i], waiter)
  else
    note_slot(KEYS[i], waiter, now)
  end
end
-- Adopted keys are set only now, when no key has refused, so that nothing has to be undone.
for i = 1, #adopted do redis.call('SET', adopted[i][1], owner, 'PX', adopted[i][2]) end

-- Both the + 1 and the candidate matter: without the first, two holders get one token; without the
-- second, tokens decrease after counters were lost. The cap keeps out a client's wrong clock.
local candidate = tonumber(ARGV[4])
if candidate > now + 5000000 then candidate = now + 5000000 end
local reply = {ARGV[1], ARGV[11] and 'P' or 'G'}
for i = 1, count do
  local fence = tonumber(redis.call('GET', counters[i]) or '0') + 1
  if fence < candidate then fence = candidate end
  local text = string.format('%.0f', fence)
  redis.call('SET', counters[i], text)
  reply[#reply + 1] = text
  if ARGV[11] then reply[#reply + 1] = slots[i] or '' end
end
return reply
