-- Acquire all lock keys on this node, or none. A key of the named previous owner counts as free.
--
-- KEYS  lock keys, then the fence counter of each, then the guard record
-- ARGV  nonce, owner, ttl in ms, candidate token in µs, quarantine in ms (0: guard off),
--       previous owner ('': none; may be absent); a waiter may follow ('': none): its name, since
--       when it waits in ms, for how long its wait queue is kept in ms (0: it waits no longer), and
--       for how long in ms it lets those before it go first once they are woken (0: it takes what is
--       free); then for each key, if one has a limit: its slots (0: an ordinary key), the period in
--       ms for which a slot stays taken (0: as long as the lease), and which slot to try first
--
-- {nonce, 'G', counter, ...}                      granted, one counter for each key
-- {nonce, 'P', counter, slot, ...}                the same where a key has a limit; '' for the others
-- {nonce, 'H', index, holder, pttl in ms, ...}    other owners have these keys; a key with a limit
--                                                 counts as all its slots
-- {nonce, 'W', ms, index, holder, pttl, ...}      the same where a slot of a key with a period is
--                                                 free for this one after so many ms only
-- {nonce, 'Q', ms}                                in quarantine for that time
--
-- A waiter that is refused a key is put into its wait queue in this same step: a release that comes
-- after the refusal finds it there. For a key with a period the queue has times instead, until which
-- those who wait shall have come: each comes when a slot is free and those before it have theirs.
-- (`identity.lua`, `guard.lua`, `slots.lua`, `wait_queue.lua` and `turns.lua` precede this script.)
local owner, ttl = ARGV[2], ARGV[3]
local waiter = ARGV[7] ~= '' and ARGV[7]
local count = (#KEYS - 1) / 2
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local quarantine = quarantined(KEYS[#KEYS], tonumber(ARGV[5]), now)
if quarantine then return {ARGV[1], 'Q', quarantine} end

-- Return who goes before our waiter for a key with so many free slots, and for how long yet in ms.
local function goes_first(key, free)
  local queue, grace = queue_of(key), tonumber(ARGV[10])
  local score = redis.pcall('ZSCORE', queue, waiter)
  local own = type(score) == 'string' and tonumber(score) or tonumber(ARGV[8])
  local woken, gone, ahead, first, left = woken_in(queue, -1), 0, 0, nil, nil
  for i = 1, #woken, 2 do
    local at = tonumber(woken[i + 1])
    if woken[i] ~= waiter and now - at > grace * 1000 then
      redis.pcall('ZREM', queue, woken[i])
      gone = gone + 1
    elseif woken[i] ~= waiter and (own < WOKEN or at < own) then
      ahead = ahead + 1
      if not first then first, left = woken[i], math.ceil(grace - (now - at) / 1000) end
      if ahead == free then return first, left end
    end
  end
  -- For each that did not come two are woken, so that a crowd of those who are gone is passed soon.
  local longest = redis.pcall('ZRANGE', queue, 0, free - ahead - 1 + 2 * gone, 'WITHSCORES')
  for i = 1, #longest, 2 do
    if longest[i] ~= waiter and tonumber(longest[i + 1]) < tonumber(ARGV[8]) then
      redis.pcall('ZADD', queue, string.format('%.0f', now + i), longest[i])
      publish(key, longest[i])
      ahead = ahead + 1
      if not first then first, left = longest[i], grace end
    end
  end
  if ahead >= free then return first, left end
end

-- Return which free slot is ours, or nil; the holders of all; and whether the previous owner has it.
local function choose(key, limit, period, begin)
  -- Usually the first one is free, and nothing depends on the others.
  local in_order = period == 0 and waiter and ARGV[10] ~= '0'
  if not in_order and ARGV[6] == '' and redis.call('PTTL', key .. begin) == -2 then return begin end
  local holders, free, slot = redis.call('MGET', unpack(slots_of(key, limit))), 0, nil
  for i = begin, begin + limit - 1 do
    local holder = holders[i % limit + 1]
    if holder and holder ~= '' and holder == ARGV[6] then return i % limit, holders, true end
    if not holder then
      free = free + 1
      -- A value that is no string looks free.
      if not slot and redis.call('PTTL', key .. i % limit) == -2 then slot = i % limit end
    end
  end
  local first, left
  if slot and in_order then first, left = goes_first(key, free) end
  if not first then return slot, holders end
  return nil, holders, nil, 'waiting ' .. first, left
end

local taken, adopted, held, refused, counters, slots, place, turn_in = {}, {}, {}, {}, {}, {}, 0, nil
for i = 1, count do
  local key, limit = KEYS[i], tonumber(ARGV[8 + 3 * i] or '0')
  if limit > 0 then
    local period = tonumber(ARGV[9 + 3 * i])
    local slot, holders, is_previous, first, left = choose(key, limit, period, tonumber(ARGV[10 + 3 * i]))
    if slot then
      local life = period > 0 and period or ttl
      local list = is_previous and adopted or taken
      list[#list + 1] = {key .. slot, life, key}
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
        pttls[n] = pttl < 0 and period or pttl
      end
      if period > 0 then
        refused[#refused] = nil
        local turn = turn_of(queue_of(key), waiter, tonumber(ARGV[9]), pttls, period, now)
        turn_in = math.max(turn_in or 0, turn)
      end
    end
    place = place + limit
  else
    if redis.call('SET', key, owner, 'NX', 'PX', ttl) then
      local first, left
      if waiter and ARGV[10] ~= '0' then first, left = goes_first(key, 1) end
      if first then
        redis.call('DEL', key)
        held[#held + 1] = place
        held[#held + 1] = 'waiting ' .. first
        held[#held + 1] = left
        refused[#refused + 1] = key
      else
        taken[#taken + 1] = {key, ttl, key}
      end
    else
      local holder = redis.pcall('GET', key)
      if holder == ARGV[6] and holder ~= '' then
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
    redis.call('DEL', taken[i][1])
    -- It waits for the others now, and those that wait for these must not wait for it.
    if waiter then redis.pcall('ZREM', queue_of(taken[i][3]), waiter) end
  end
  for i = 1, waiter and #refused or 0 do
    local queue = queue_of(refused[i])
    if ARGV[9] == '0' then
      redis.pcall('ZREM', queue, waiter)
    else
      redis.pcall('ZADD', queue, ARGV[8], waiter)
      redis.pcall('ZREMRANGEBYRANK', queue, 1000, -1)
      keep(queue, tonumber(ARGV[9]))
    end
  end
  if turn_in then return {ARGV[1], 'W', math.ceil(turn_in), unpack(held)} end
  return {ARGV[1], 'H', unpack(held)}
end
for i = 1, waiter and count or 0 do
  redis.pcall('ZREM', queue_of(KEYS[i]), waiter)
end
-- Only now that no other key refuses, so that nothing has to be undone.
for i = 1, #adopted do redis.call('SET', adopted[i][1], owner, 'PX', adopted[i][2]) end

-- Both the + 1 and the candidate matter: without the first, two holders get one token; without the
-- second, tokens decrease after counters were lost. A client's clock must not be ahead of ours.
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
