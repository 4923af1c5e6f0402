-- Tell what a register has; with a token, promise first to refuse what older tokens write.
-- Both in one script: what is told is all that a refused writer can ever have written here.
--
-- KEYS  the register, a hash as write_register.lua makes it
-- ARGV  nonce, token (0: promise nothing), most bytes to tell, names of the fields (none: all)
--
-- {nonce, 'R', token, name, value, ...}   the newest token that was here, and what fields there are
-- {nonce, 'O', token}                     this newer token has been here; nothing is promised
--
-- A value that would make the answer too long is told as '', to be asked for by name; the first
-- value never is.
local token, most = tonumber(ARGV[2]), tonumber(ARGV[3])
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
local function tell(name, value)
  if size > 0 and size + #value > most then value = '' end
  size = size + #value
  reply[#reply + 1] = name
  reply[#reply + 1] = value
end

if #ARGV > 3 then
  for i = 4, #ARGV do
    local value = redis.call('HGET', KEYS[1], 'f:' .. ARGV[i])
    if value then tell(ARGV[i], value) end
  end
else
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'f:' then tell(string.sub(all[i], 3), all[i + 1]) end
  end
end
return reply
