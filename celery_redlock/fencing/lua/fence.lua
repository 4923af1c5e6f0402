-- Run `body`, which is defined above, unless a key has seen a newer token.
--
-- KEYS: the caller's keys, then one fence record for each of them, in the same order.
-- ARGV: the token; how many milliseconds to keep a record, 0 for no limit; the caller's arguments.
-- A fence record is a string: the highest token seen for its key, in decimal.
--
-- The records change before the body runs. A script that fails in the middle keeps what it has
-- written; if the records changed afterwards, an older token could still write over that.
local count = #KEYS / 2
local offered = tonumber(ARGV[1])
local keep = tonumber(ARGV[2])
local keys, known = {}, {}
for i = 1, count do
  keys[i] = KEYS[i]
  known[i] = redis.pcall('GET', KEYS[count + i])
  local seen = 0
  if type(known[i]) == 'table' and not known[i].err:find('WRONGTYPE', 1, true) then
    return known[i]
  end
  if known[i] then
    local text = type(known[i]) == 'string' and known[i]:match('^[1-9]%d*$')
    seen = text and tonumber(text)
    if not seen or seen > 9007199254740991 then
      return redis.error_reply('REDLOCKCORRUPT ' .. string.format('%.0f', i))
    end
  end
  if seen > offered then
    return redis.error_reply('REDLOCKSTALE ' .. string.format('%.0f %.0f', seen, i))
  end
end
for i = 1, count do
  if keep > 0 then
    redis.call('SET', KEYS[count + i], ARGV[1], 'PX', ARGV[2])
  elseif known[i] ~= ARGV[1] then
    redis.call('SET', KEYS[count + i], ARGV[1])
  end
end
local arguments = {}
for i = 3, #ARGV do
  arguments[i - 2] = ARGV[i]
end
return body(keys, arguments)
