-- The pause of a key refuses all that ask for it, until it expires; the key's holders keep it. It is
-- a key of its own, with the owner value of the one who paused. As long as its longest pause, a node
-- also has the key `redlock-meta:paused`, so that an acquire looks for pauses only where there are
-- any.

-- Return the pause of a key, which it shares with its limits and rates; nil for a record.
local function pause_of(key)
  if string.sub(key, 1, 13) == 'redlock-meta:' then
    key = string.match(key, '^redlock%-meta:limit:(.*)#$')
      or string.match(key, '^redlock%-meta:rate:%d+:(.*)#$')
    if not key or string.sub(key, 1, 13) == 'redlock-meta:' then return end
  end
  return 'redlock-meta:paused:' .. key
end

-- Return for how many more ms a key is paused, and its pause; nil if it is not.
local function paused_for(key)
  local pause = pause_of(key)
  local left = pause and redis.call('PTTL', pause) or -2
  if left ~= -2 then return left, pause end
end

