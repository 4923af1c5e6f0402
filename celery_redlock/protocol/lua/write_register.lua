-- Write fields of a register, unless it has seen a newer token. Remembers the token.
--
-- KEYS  the register
-- ARGV  nonce, token, then for each field: name, version ('': delete the field), text
--
-- {nonce, 'A'}          the token is the newest here, and no field is older than in this command
-- {nonce, 'O', token}   this newer token was seen here; nothing changed
--
-- A register is a hash: "token" is the newest token seen here, and "f:<name>" is a field,
-- "<token> <version> <text>". Both numbers are from 0 to 2^53 - 1, exact in Lua.
local token = tonumber(ARGV[2])
local seen = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if not seen then return redis.error_reply('the token of ' .. KEYS[1] .. ' is not a number') end
if seen > token then return {ARGV[1], 'O', string.format('%.0f', seen)} end
if seen < token then redis.call('HSET', KEYS[1], 'token', ARGV[2]) end
for i = 3, #ARGV, 3 do
  local field, version = 'f:' .. ARGV[i], tonumber(ARGV[i + 1])
  if version then
    -- A node resumed after SIGSTOP may execute a buffered write after a newer one.
    local stored = redis.call('HGET', KEYS[1], field) or ''
    local by, at = string.match(stored, '^(%d+) (%d+) ')
    by, at = tonumber(by or '0'), tonumber(at or '0')
    if by < token or (by == token and at <= version) then
      redis.call('HSET', KEYS[1], field, ARGV[2] .. ' ' .. ARGV[i + 1] .. ' ' .. ARGV[i + 2])
    end
  else
    redis.call('HDEL', KEYS[1], field)
  end
end
return {ARGV[1], 'A'}
