-- Extend the keys of some leases that carry their owner values; never shorten one, never create
-- one. The fence counters are raised in any case, also on a node that missed the acquire.
--
-- KEYS  the lock keys of all leases, then the fence counter of each
-- ARGV  nonce, then for each lease: owner, ttl in ms, token, number of its keys
--
-- {nonce, votes}   a letter for each lease:
--   A   all its keys are its own and live at least ttl from now
--   M   some keys are missing, and none has another owner
--   F   another owner has one of them
local count = #KEYS / 2
local votes, first = {}, 1
for at = 2, #ARGV, 4 do
  local owner, ttl, token = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local last, vote = first + tonumber(ARGV[at + 3]) - 1, 'A'
  for i = first, last do
    -- pcall, so that a key that was overwritten with a list spoils no other lease.
    local holder, counter = redis.pcall('GET', KEYS[i]), KEYS[count + i]
    if holder == owner then
      if redis.call('PTTL', KEYS[i]) < ttl then redis.call('PEXPIRE', KEYS[i], ttl) end
    elseif holder then
      vote = 'F'
    elseif vote == 'A' then
      vote = 'M'
    end
    if (tonumber(redis.pcall('GET', counter) or '0') or 0) < tonumber(token) then
      redis.pcall('SET', counter, token) -- a full server denies it
    end
  end
  votes[#votes + 1], first = vote, last + 1
end
return {ARGV[1], table.concat(votes)}
