-- Enter waiters in the wait queues of their keys again: they may have been woken, and forgotten, while
-- nobody could start them. Takes nothing.
--
-- KEYS  a lock key for each waiter; one with a limit without a slot
-- ARGV  nonce, ms to keep the queues, then for each waiter: its name, since when it waits in ms
--
-- {nonce, 'A'}
-- (`wait_queue.lua` precedes this script.)
for i = 1, #KEYS do remember(KEYS[i], ARGV[2 * i + 1], ARGV[2 * i + 2], tonumber(ARGV[2])) end
return {ARGV[1], 'A'}
