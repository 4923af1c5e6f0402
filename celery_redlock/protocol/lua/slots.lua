-- Each slot of a key with a limit is a key of its own. The slots of one key have successive fence
-- counters, so that the tokens of each slot increase.

local function slots_of(key, limit)
  local slots = {}
  for slot = 0, limit - 1 do slots[slot + 1] = key .. slot end
  return slots
end

local function fence_of(first, slot)
  local bucket = tonumber(string.match(first, '%d+$'))
  return 'redlock-meta:fence:' .. string.format('%.0f', (bucket + slot) % 4096)
end

-- Return the key that a slot belongs to, or nil; and whether its slots stay taken for a period.
local function lock_of(key)
  local is_rate = string.sub(key, 1, 18) == 'redlock-meta:rate:'
  if is_rate or string.sub(key, 1, 19) == 'redlock-meta:limit:' then
    return string.match(key, '^(.*#)%d+$'), is_rate
  end
end

