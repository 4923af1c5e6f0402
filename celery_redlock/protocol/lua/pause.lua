-- Pause a key, or end its pause and wake those that wait for that. Also in quarantine: this node
-- votes when that is over, and has to refuse the key then.
--
-- KEYS  the pause of the key, then the key that a node has as long as its longest pause; to end it
--       also the key, without and with a limit, whose waiters a release during the pause did not wake
-- ARGV  nonce, the owner value of the one who pauses ('': the pause ends), ms
--
-- {nonce, 'A'}  the key is paused; or its pause has ended
-- {nonce, 'F'}  the key was not paused, and is not
-- (`slots.lua`, `pauses.lua` and `wait_queue.lua` precede this script.)
local pause, longest, ms = KEYS[1], KEYS[2], tonumber(ARGV[3])
if ARGV[2] == '' then
  if redis.call('DEL', pause) == 0 then return {ARGV[1], 'F'} end
  wake(pause, 0)
  if redis.call('PTTL', KEYS[3]) == -2 then wake(KEYS[3], 0) end
  wake(KEYS[4], 1)
  return {ARGV[1], 'A'}
end
-- Those that waited for the end of an earlier pause are gone, and would be woken in others' place.
if redis.call('PTTL', pause) == -2 then redis.call('DEL', queue_of(pause), woken_of(pause)) end
redis.call('SET', pause, ARGV[2], 'PX', ms)
-- Never shortened: other pauses may last as long.
if redis.call('PTTL', longest) < ms then redis.call('SET', longest, pause, 'PX', ms) end
return {ARGV[1], 'A'}
