-- Return the owner, lifetime and counter of each lock key; change nothing.
--
-- KEYS  lock keys, then the fence counter of each
-- ARGV  nonce
--
-- {nonce, 'S', holder, pttl in ms, counter, ...}   for each key; pttl is -2 if it is missing
local count = #KEYS / 2
local reply = {ARGV[1], 'S'}
for i = 1, count do
  local holder = redis.pcall('GET', KEYS[i])
  if type(holder) == 'table' then holder = 'not a string' end
  reply[#reply + 1] = holder or ''
  reply[#reply + 1] = redis.call('PTTL', KEYS[i])
  reply[#reply + 1] = redis.call('GET', KEYS[count + i]) or '0'
end
return reply
