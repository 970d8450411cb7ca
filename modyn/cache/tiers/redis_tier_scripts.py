"""Scripts of a tier in Redis. Redis executes each script as a whole, so counts stay right even if a process is killed. No buffer passes through a
script, because Lua would copy it twice.

A namespace is one hash that maps sample keys to buffers, and the field `used` to the number of bytes. The tier is another hash, with the budget, the
evictions, and for each namespace the number and bytes of its samples after the last script. These numbers are needed to count the evictions of a
namespace that has expired or that Redis has evicted.
"""

from __future__ import annotations

from typing import Final

from modyn.cache.tiers.tier import IDLE_S, IN_USE_S

OVERHEAD_BYTES: Final = 128
"""Bytes of a sample in addition to its buffer: its key, the records of Redis, and the rounding of its allocator."""

_NAMESPACES: Final = """
local function namespaces()
  local names = {}
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if name ~= 'budget' and name ~= 'evicted' and name ~= 'evicted_bytes' then names[#names + 1] = name end
  end
  return names
end
local function noted(name) return string.match(redis.call('HGET', KEYS[1], name), '^(%d+) (%d+)$') end
"""
"""`noted`: number and bytes of a namespace's samples after the last change by a script; nil: the namespace is not known."""
_FUNCTIONS: Final = f"""{_NAMESPACES}
local function claim()
  local budget = redis.call('HGET', KEYS[1], 'budget')
  if not budget then redis.call('HSET', KEYS[1], 'budget', ARGV[1]) end
  return budget or ARGV[1]
end
local function evicted(num, bytes)
  if tonumber(num or 0) > 0 and redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HINCRBY', KEYS[1], 'evicted', num)
    redis.call('HINCRBY', KEYS[1], 'evicted_bytes', bytes)
  end
end
local function note()
  local num = redis.call('HLEN', KEYS[2]) - redis.call('HEXISTS', KEYS[2], 'used')
  redis.call('HSET', KEYS[1], string.sub(KEYS[2], #KEYS[1] + 2), num .. ' ' .. (redis.call('HGET', KEYS[2], 'used') or 0))
end
local function used_bytes()
  local sum = 0
  for _, name in ipairs(namespaces()) do
    local used = redis.call('HGET', KEYS[1] .. ':' .. name, 'used')
    if used then
      sum = sum + tonumber(used)
    else
      local num, bytes = noted(name)
      -- The namespace has expired, or Redis has evicted it.
      redis.call('HDEL', KEYS[1], name)
      evicted(num, bytes)
    end
  end
  return sum
end
local function charge(key)
  local size = redis.call('HSTRLEN', KEYS[2], key)
  -- A missing sample and an empty buffer both have the size 0.
  if size == 0 and redis.call('HEXISTS', KEYS[2], key) == 0 then return 0 end
  return size + {OVERHEAD_BYTES}
end
"""
"""KEYS of all scripts: the hash of the tier, the hash of the namespace. `charge`: bytes of the budget that a stored sample takes. `evicted`: counts
evictions; a script calls it after a deletion, because a script that has begun to write may continue without free memory."""
CLAIM: Final = f"""{_FUNCTIONS}
local budget = claim()
if budget ~= ARGV[1] and redis.call('TTL', KEYS[1]) < {IDLE_S - IN_USE_S} then
  -- Counts the namespaces that are gone, before the records of all are removed.
  used_bytes()
  for _, name in ipairs(namespaces()) do
    redis.call('UNLINK', KEYS[1] .. ':' .. name)
    evicted(noted(name))
  end
  -- The numbers of evicted samples continue in the new tier.
  local counts = redis.call('HMGET', KEYS[1], 'evicted', 'evicted_bytes')
  redis.call('UNLINK', KEYS[1])
  budget = claim()
  if counts[1] then redis.call('HSET', KEYS[1], 'evicted', counts[1], 'evicted_bytes', counts[2]) end
end
redis.call('EXPIRE', KEYS[1], {IDLE_S})
return budget
"""
"""ARGV: budget. Returns the valid budget. A tier that has another budget, and was used within IN_USE_S, keeps this budget. Otherwise the tier is
emptied and gets the new budget."""
HOLDS: Final = """
local found = {}
for i, key in ipairs(ARGV) do found[i] = redis.call('HEXISTS', KEYS[2], key) end
return table.concat(found)
"""
"""ARGV: keys. Returns a text with 1 for each existing sample, 0 for others."""
ASK: Final = f"""{_FUNCTIONS}
local room, charged, fits = tonumber(ARGV[1]) - used_bytes(), {{}}, {{}}
for i = 2, #ARGV, 2 do
  local more = ARGV[i + 1] + {OVERHEAD_BYTES} - (charged[ARGV[i]] or charge(ARGV[i]))
  fits[#fits + 1] = more <= room and 1 or 0
  if more <= room then
    room = room - more
    charged[ARGV[i]] = ARGV[i + 1] + {OVERHEAD_BYTES}
  end
end
return fits
"""
"""ARGV: budget, then alternating key and size. Returns 1 for each sample that would be kept, 0 for samples that need not be sent."""
CHARGE: Final = f"""{_FUNCTIONS}
redis.call('HDEL', KEYS[2], '')
local budget = claim()
local room, added, kept, seen = 0, 0, {{}}, {{}}
if budget == ARGV[1] then room = tonumber(budget) - used_bytes() end
for i = 3, #ARGV do
  local key = ARGV[i]
  -- A sample that was written several times counts once.
  if not seen[key] then
    local more = charge(key)
    seen[key] = more <= room and 1 or 0
    if more <= room then room, added = room - more, added + more else redis.call('HDEL', KEYS[2], key) end
  end
  kept[#kept + 1] = seen[key]
end
if budget ~= ARGV[1] then return redis.error_reply('BUDGET ' .. budget) end
if added ~= 0 then redis.call('HINCRBY', KEYS[2], 'used', added) end
note()
redis.call('EXPIRE', KEYS[1], {IDLE_S})
redis.call('EXPIRE', KEYS[2], {IDLE_S})
return kept
"""
"""ARGV: budget, namespace, then keys of uncounted samples. The same transaction has dropped the earlier values of these keys and written new ones.
Counts the samples, and drops those that do not fit. Returns 1 for each kept sample, 0 for others. For HDEL at the beginning see DROP."""
_DROP: Final = f"""{_FUNCTIONS}
local freed, num = 0, 0
for _, key in ipairs(ARGV) do
  freed = freed + charge(key)
  num = num + redis.call('HDEL', KEYS[2], key)
end
if freed ~= 0 then
  redis.call('HINCRBY', KEYS[2], 'used', -freed)
  if redis.call('EXISTS', KEYS[1]) == 1 then note() end
end
"""
"""ARGV: keys. HDEL comes first, because a script that has begun to write may continue after memory has run out."""
DROP: Final = f"{_DROP} evicted(num, freed)"
"""ARGV: keys. Counts dropped samples as evicted."""
REPLACE: Final = _DROP
"""ARGV: keys. New values for these keys follow in the same transaction."""
COUNT: Final = f"{_FUNCTIONS} return {{used_bytes(), redis.call('HLEN', KEYS[2]) - redis.call('HEXISTS', KEYS[2], 'used')}}"
"""Returns the bytes of the tier and the samples of the namespace."""
STORED: Final = f"""{_NAMESPACES}
local counts = redis.call('HMGET', KEYS[1], 'budget', 'evicted', 'evicted_bytes')
local found = {{counts[1] or '', 0, 0, tonumber(counts[2] or 0), tonumber(counts[3] or 0)}}
for _, name in ipairs(namespaces()) do
  local used = redis.call('HGET', KEYS[1] .. ':' .. name, 'used')
  if used then
    found[2] = found[2] + tonumber(used)
    -- One of the fields is `used`, which is not a sample.
    found[3] = found[3] + redis.call('HLEN', KEYS[1] .. ':' .. name) - 1
    if tonumber(used) > 0 then found[#found + 1] = name end
  else
    local num, bytes = noted(name)
    found[4], found[5] = found[4] + (num or 0), found[5] + (bytes or 0)
  end
end
return found
"""
"""Returns budget, bytes and samples of the tier, number and bytes of evicted samples, then the namespaces. Changes nothing, not even the expiry of
keys."""
CLEAR: Final = """
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('UNLINK', KEYS[1] .. ':' .. name) end
redis.call('UNLINK', KEYS[1])
"""
