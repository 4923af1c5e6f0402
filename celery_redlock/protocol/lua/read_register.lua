-- Return a register; with a token, refuse the writes of older tokens from now on. One script does
-- both, so that the reply has all that a refused writer will ever have written here.
--
-- KEYS  the register, a hash as write_register.lua makes it
-- ARGV  nonce, token (0: refuse no writer), maximum bytes of the reply, names of fields (none: all)
--
-- {nonce, 'R', token, name, value, ...}   the newest token seen here, and the fields
-- {nonce, 'O', token}                     this newer token was seen here; nothing changed
--
-- A value that would make the reply too large is replaced by '', and can be read by name; the first
-- value is never replaced.
local token, max_bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
local seen = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if not seen then return redis.error_reply('the token of ' .. KEYS[1] .. ' is not a number') end
if token > 0 then
  if seen > token then return {ARGV[1], 'O', string.format('%.0f', seen)} end
  if seen < token then
    redis.call('HSET', KEYS[1], 'token', ARGV[2])
    seen = token
  end
end

local reply, size = {ARGV[1], 'R', string.format('%.0f', seen)}, 0
local function add(name, value)
  if size > 0 and size + #value > max_bytes then value = '' end
  size = size + #value
  reply[#reply + 1] = name
  reply[#reply + 1] = value
end

if #ARGV > 3 then
  for i = 4, #ARGV do
    local value = redis.call('HGET', KEYS[1], 'f:' .. ARGV[i])
    if value then add(ARGV[i], value) end
  end
else
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'f:' then add(string.sub(all[i], 3), all[i + 1]) end
  end
end
return reply
