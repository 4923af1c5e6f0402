-- Enter waiters in the wait queues of their keys; acquire nothing. This node may have woken and
-- forgotten them while no worker could start them, or granted a key that other nodes refused.
--
-- KEYS  a lock key for each waiter; a key with a limit is named without a slot
-- ARGV  nonce, ms to keep the queues, then for each waiter: its name, its score
--
-- {nonce, 'A'}
-- (`wait_queue.lua` precedes this script.)
for i = 1, #KEYS do remember(KEYS[i], ARGV[2 * i + 1], ARGV[2 * i + 2], tonumber(ARGV[2])) end
return {ARGV[1], 'A'}
