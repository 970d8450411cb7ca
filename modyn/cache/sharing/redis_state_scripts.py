"""The scripts of the shared state in Redis: the rule of `value_ring.py`, in Lua, with the same names. Tests compare both modules.

KEYS of all scripts: the hash of numbers and jobs; the string of sample keys, 8 bytes for each slot, most significant first; the string of words, 5
bytes for each slot: the stage of the value, and the mask of the jobs that have used the value. If memory is exhausted, a script ends before it
changes anything, because Redis then refuses the script's first change.
"""

from __future__ import annotations

from typing import Final

from modyn.cache.sharing.state import (
    GONE,
    IS_ADMITTED,
    IS_GONE,
    IS_HELD,
    IS_LEAVING,
    IS_LEFT,
    IS_PENDING,
    IS_SERVED,
    IS_SERVED_LAST,
    IS_TAKEN,
    IS_UNSEEN,
    LEAVING,
    MOST_BEHIND,
    MOST_MEMBERS,
    MOST_STEPS,
    NOTHING_READ,
    PENDING,
    READY,
    STATE_VERSION,
)
from modyn.cache.tiers.tier import IDLE_S

KEY_BYTES: Final = 8
WORD_BYTES: Final = 5
_RESERVED_SLOTS: Final = 1 << 22
"""Largest number of slots that are allocated at the beginning. Redis reserves additional memory for a string that grows, so the strings of small
states are allocated at once."""
_WINDOW_SLOTS: Final = 8192
"""Largest number of slots that one read covers while the script examines the wanted values."""
_NUMBERS: Final = ("slots", "capacity", "first", "end", "count", "decisions", "generation", "next_place")
_FIELDS: Final = ", ".join(f"'{name}'" for name in ("version", "incarnation", *_NUMBERS, *(f"m{i}" for i in range(MOST_MEMBERS))))

_FUNCTIONS: Final = f"""
local call, band, bor, bnot, lshift = redis.call, bit.band, bit.bor, bit.bnot, bit.lshift
local sub, byte, char, unpack_number = string.sub, string.byte, string.char, struct.unpack
local names = {{{", ".join(f"'{name}'" for name in _NUMBERS)}}}
local state, members = {{}}, {{}}
local function now_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function load()
  local found = call('HMGET', KEYS[1], {_FIELDS})
  if found[1] ~= '{STATE_VERSION}' or not found[2] then return false end
  state.incarnation = found[2]
  for i, name in ipairs(names) do
    state[name] = tonumber(found[i + 2])
    if not state[name] then return false end
  end
  for place = 0, {MOST_MEMBERS - 1} do
    local text = found[place + 3 + #names]
    if text then
      -- A text that `put_member` does not write means damage, so the caller begins a new state.
      local token, seen, reading, since, barred, num_bytes, digest = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d) (%d+) (%x+)$')
      if not token then return false end
      members[place] = {{token = token, seen = tonumber(seen), reading = tonumber(reading), since = tonumber(since),
                        barred = barred, num_bytes = num_bytes, digest = digest}}
    end
  end
  local first, stop = state.first, state['end']
  if first < 0 or stop < first or stop > first + state.slots or state.count < 0 or state.count > math.min(state.capacity, stop - first) then
    return false
  end
  -- Redis may have lost one of the keys: the strings must cover all slots in use.
  local filled = math.min(stop, state.slots)
  return call('STRLEN', KEYS[2]) >= filled * {KEY_BYTES} and call('STRLEN', KEYS[3]) >= filled * {WORD_BYTES}
end
local function has(incarnation, place, token)
  return load() and state.incarnation == incarnation and members[tonumber(place)] and members[tonumber(place)].token == token
end
local function put_member(place)
  local m = members[place]
  -- Without a format, Lua writes large numbers with an exponent.
  local text = string.format('%s %.0f %.0f %.0f %s %s %s', m.token, m.seen, m.reading, m.since, m.barred, m.num_bytes, m.digest)
  call('HSET', KEYS[1], 'm' .. place, text)
end
local function put_state()
  local parts = {{}}
  for _, name in ipairs(names) do
    parts[#parts + 1] = name
    parts[#parts + 1] = string.format('%.0f', state[name])
  end
  call('HSET', KEYS[1], 'version', '{STATE_VERSION}', 'incarnation', state.incarnation, unpack(parts))
end
local function expel(now, lease_ms)
  local late = {{}}
  for place, m in pairs(members) do
    if m.seen < now - lease_ms then late[#late + 1] = place end
  end
  for _, place in ipairs(late) do members[place] = nil end
  if #late > 0 then state.generation = state.generation + 1 end
  return late
end
local function drop_members(places)
  for _, place in ipairs(places) do call('HDEL', KEYS[1], 'm' .. place) end
end
local function keep_for_a_while()
  for _, key in ipairs(KEYS) do call('EXPIRE', key, {IDLE_S}) end
end
"""

JOIN: Final = f"""{_FUNCTIONS}
local now, lease_ms, wanted = now_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
-- A state with less than half of the wanted slots is replaced by a larger one.
if not load() or state.slots * 2 < wanted then
  members = {{}}
  state = {{incarnation = ARGV[5], slots = wanted, capacity = math.min(tonumber(ARGV[4]), wanted), first = 0, ['end'] = 0, count = 0,
           decisions = 0, generation = 0, next_place = 0}}
  call('DEL', KEYS[1], KEYS[2], KEYS[3])
  put_state()
  -- Setting the last byte allocates a whole string.
  local reserved = math.min(wanted, {_RESERVED_SLOTS})
  call('SETRANGE', KEYS[2], reserved * {KEY_BYTES} - 1, '\\0')
  call('SETRANGE', KEYS[3], reserved * {WORD_BYTES} - 1, '\\0')
end
local late = expel(now, lease_ms)
-- The earlier session of this job ends now, not after its lease.
if ARGV[7] == state.incarnation then
  for place, m in pairs(members) do
    if m.token == ARGV[8] then late[#late + 1] = place end
  end
  for _, place in ipairs(late) do members[place] = nil end
end
-- A place is reused as late as possible, because masks of older values may still contain the bit of its earlier job.
local place
for i = 0, {MOST_MEMBERS - 1} do
  place = (state.next_place + i) % {MOST_MEMBERS}
  if not members[place] then break end
  place = nil
end
if not place then return false end
state.next_place = (place + 1) % {MOST_MEMBERS}
state.generation = state.generation + 1
put_state()
drop_members(late)
members[place] = {{token = ARGV[6], seen = now, reading = {NOTHING_READ}, since = state['end'], barred = ARGV[9], num_bytes = ARGV[10],
                  digest = ARGV[11]}}
put_member(place)
keep_for_a_while()
return {{state.incarnation, place, state.slots, state.capacity, state.first, state['end'], state.generation}}
"""
"""Additional KEYS: the job's own key set. ARGV: now in ms (empty: the server's clock); lease in ms; slots; capacity; incarnation of a new state;
token; incarnation and token of the earlier session; whether the job is barred; bytes of its key set; the set's digest in hexadecimal. Returns the
fields of `Membership` except the token, or false if no place is free."""

EXCHANGE: Final = f"""{_FUNCTIONS}
local own, now, lease_ms = tonumber(ARGV[2]), now_ms(ARGV[4]), tonumber(ARGV[5])
if not has(ARGV[1], own, ARGV[3]) then return false end
local known, reading, known_members = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local size, num_hits = tonumber(ARGV[9]), math.min(tonumber(ARGV[9]), tonumber(ARGV[10]))
local kept, refilled, dropped, wanted, candidates = ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15]
members[own].seen = now
local late = expel(now, lease_ms)
state.decisions = state.decisions + 1
members[own].reading = reading
if reading < 0 then members[own].reading = size > 0 and state.decisions or {NOTHING_READ} end
local first, stop, slots, count = state.first, state['end'], state.slots, state.count
put_state()
drop_members(late)

local live, quiet = 0, state.decisions
for place, m in pairs(members) do
  live = bor(live, lshift(1, place))
  quiet = math.min(quiet, m.reading)
end

-- Words that were read in advance, for the numbers from window_start to window_stop.
local window, window_start, window_stop = '', 0, 0
local function word(number)
  local slot = number % slots
  if number >= window_start and number < window_stop then
    local stage, a, b, c, d = byte(window, (number - window_start) * {WORD_BYTES} + 1, (number - window_start + 1) * {WORD_BYTES})
    return stage, ((a * 256 + b) * 256 + c) * 256 + d
  end
  local stage, a, b, c, d = byte(call('GETRANGE', KEYS[3], slot * {WORD_BYTES}, slot * {WORD_BYTES} + {WORD_BYTES - 1}), 1, {WORD_BYTES})
  if not d then return {GONE}, 0 end
  return stage, ((a * 256 + b) * 256 + c) * 256 + d
end
local function set_stage(number, stage)
  call('SETRANGE', KEYS[3], number % slots * {WORD_BYTES}, char(stage))
end
local function stage_of(number)
  if number < first then return {GONE}, 0, false end
  local stage, mask = word(number)
  if stage == {PENDING} then
    -- The highest bit of the mask is the place of the preparing job.
    local place = 0
    for i = {MOST_MEMBERS - 1}, 1, -1 do
      if mask >= 2 ^ i then place = i break end
    end
    -- The preparing job is gone, or its place belongs to a later job: no job finishes this value.
    if band(mask, live) == 0 or not members[place] or number < members[place].since then return {GONE}, mask, true end
  end
  return stage, mask, false
end

local refused = {{}}
local function report(numbers, served)
  for at = 1, #numbers, 4 do
    local number = known - unpack_number('>I4', numbers, at)
    local stage = number >= first and word(number) or {GONE}
    if stage == {GONE} then refused[#refused + 1] = sub(numbers, at, at + 3) end
    -- The mask is the bit of the preparing job. A refilled value gets an empty mask, because no job has used it yet.
    if stage == {PENDING} then call('SETRANGE', KEYS[3], number % slots * {WORD_BYTES}, char({READY}) .. served) end
  end
end
report(kept, '')
report(refilled, '\\0\\0\\0\\0')
for at = 1, #dropped, 4 do
  local number = known - unpack_number('>I4', dropped, at)
  if number >= first and word(number) ~= {GONE} then
    set_stage(number, {GONE})
    count = count - 1
  end
end

-- The slots form a ring: a range may continue at the beginning of the string.
local function read_keys(from, to)
  if from >= to then return '' end
  local a, b = from % slots, (to - 1) % slots
  if a <= b then return call('GETRANGE', KEYS[2], a * {KEY_BYTES}, (b + 1) * {KEY_BYTES} - 1) end
  return call('GETRANGE', KEYS[2], a * {KEY_BYTES}, slots * {KEY_BYTES} - 1) .. call('GETRANGE', KEYS[2], 0, (b + 1) * {KEY_BYTES} - 1)
end
local function write(key, width, from, content)
  local slot, room = from % slots, slots - from % slots
  if #content == 0 then return end
  call('SETRANGE', key, slot * width, sub(content, 1, room * width))
  if #content > room * width then call('SETRANGE', key, 0, sub(content, room * width + 1)) end
end

local start = math.min(math.max(known, first), stop)
local is_behind = stop - start > {MOST_BEHIND}
local tail, verdicts, choices, evicted = '', {{}}, {{}}, {{}}
for i = 1, #wanted / 8 do verdicts[i] = {IS_UNSEEN} end
for i = 1, #candidates / 13 do choices[i] = {IS_LEFT} end
if not is_behind then
  tail = read_keys(start, stop)
  -- Values that are new to this job, by key. Another job may already prepare a candidate.
  local in_tail = {{}}
  for i = 0, stop - start - 1 do
    in_tail[sub(tail, i * {KEY_BYTES} + 1, (i + 1) * {KEY_BYTES})] = start + i
  end

  local num_served, next_wanted, lost, served = 0, 1, {{}}, {{}}
  local function look_at_wanted(most)
    while next_wanted <= #verdicts and num_served < most do
      local number = known - unpack_number('>I4', wanted, next_wanted * 8 - 7)
      local stage, mask, is_lost = stage_of(number)
      if is_lost then lost[number] = true end
      local verdict = {IS_LEAVING}
      if stage == {GONE} then verdict = {IS_GONE}
      elseif stage == {PENDING} then verdict = {IS_PENDING}
      elseif stage == {READY} then
        verdict, num_served = {IS_SERVED}, num_served + 1
        served[num_served] = {{next_wanted, number, mask}}
      end
      verdicts[next_wanted] = verdict
      next_wanted = next_wanted + 1
    end
  end
  local lowest, highest = stop, first
  for i = 1, math.min(#verdicts, num_hits) do
    local number = known - unpack_number('>I4', wanted, i * 8 - 7)
    lowest, highest = math.min(lowest, number), math.max(highest, number)
  end
  if lowest >= first and highest < stop and highest - lowest < {_WINDOW_SLOTS} and lowest % slots <= highest % slots then
    -- One read instead of many. What is in it is not changed before all is looked at.
    local found = call('GETRANGE', KEYS[3], lowest % slots * {WORD_BYTES}, (highest % slots + 1) * {WORD_BYTES} - 1)
    if #found == (highest - lowest + 1) * {WORD_BYTES} then window, window_start, window_stop = found, lowest, highest + 1 end
  end
  -- First as many hits as wanted. More follow below if there are too few candidates.
  look_at_wanted(num_hits)
  local num_taken, needed, admitted = 0, size - num_served, {{}}
  for i = 1, #choices do
    if num_taken >= needed then break end
    local at = i * 13 - 12
    local age = unpack_number('>I4', candidates, at + 8)
    local stage = {GONE}
    if age > 0 then
      local mask, is_lost
      stage, mask, is_lost = stage_of(known - age)
      if is_lost then lost[known - age] = true end
    end
    local key = sub(candidates, at, at + 7)
    if stage == {GONE} and in_tail[key] and word(in_tail[key]) ~= {GONE} then stage = {PENDING} end
    if stage ~= {GONE} then
      choices[i] = {IS_HELD}
    else
      num_taken = num_taken + 1
      choices[i] = {IS_TAKEN}
      if byte(candidates, at + 12) == 1 then admitted[#admitted + 1] = i end
    end
  end
  look_at_wanted(size - num_taken)
  -- Lost values are removed, so that another job may prepare them.
  for number in pairs(lost) do
    set_stage(number, {GONE})
    count = count - 1
  end

  local unknown = band(live, bnot(known_members))
  for _, entry in ipairs(served) do
    local i, number, mask = entry[1], entry[2], entry[3]
    local sharers = unpack_number('>I4', wanted, i * 8 - 3)
    local after = bor(mask, lshift(1, own))
    local slot = number % slots
    if band(band(bor(sharers, unknown), live), bnot(after)) == 0 then
      verdicts[i] = {IS_SERVED_LAST}
      call('SETRANGE', KEYS[3], slot * {WORD_BYTES}, char({LEAVING}) .. struct.pack('>I4', after % 4294967296))
    -- Bit operations return signed numbers, so the stored mask is converted before it is compared.
    elseif bit.tobit(mask) ~= after then
      call('SETRANGE', KEYS[3], slot * {WORD_BYTES} + 1, struct.pack('>I4', after % 4294967296))
    end
  end

  local num_new = math.min(#admitted, state.capacity)
  -- The oldest values are removed until there is room. The limit bounds the time of the script.
  local oldest, limit = first, math.min(stop, first + {MOST_STEPS})
  local chunk, chunk_start = '', first
  while oldest < limit and (count + num_new > state.capacity or stop + num_new - oldest > slots) do
    if (oldest - chunk_start) * {WORD_BYTES} >= #chunk then
      local slot = oldest % slots
      -- Usually few words are needed, so the parts that are read grow.
      local last = math.min(slot + math.max(64, oldest - first), slots) - 1
      chunk, chunk_start = call('GETRANGE', KEYS[3], slot * {WORD_BYTES}, (last + 1) * {WORD_BYTES} - 1), oldest
    end
    if byte(chunk, (oldest - chunk_start) * {WORD_BYTES} + 1) ~= {GONE} then
      evicted[#evicted + 1] = read_keys(oldest, oldest + 1)
      count = count - 1
    end
    oldest = oldest + 1
  end
  first = oldest
  -- There is no room for the other values: the job prepares these samples for itself.
  num_new = math.min(num_new, state.capacity - count, slots - (stop - first))
  local new_keys, new_word = {{}}, char({PENDING}) .. struct.pack('>I4', lshift(1, own) % 4294967296)
  for n, i in ipairs(admitted) do
    if n > num_new then break end
    choices[i] = {IS_ADMITTED}
    new_keys[n] = sub(candidates, i * 13 - 12, i * 13 - 5)
  end
  write(KEYS[2], {KEY_BYTES}, stop, table.concat(new_keys))
  write(KEYS[3], {WORD_BYTES}, stop, string.rep(new_word, num_new))
  stop, count = stop + num_new, count + num_new
end
state.first, state['end'], state.count = first, stop, count
put_state()
put_member(own)
keep_for_a_while()
local function bytes_of(codes)
  for i = 1, #codes do codes[i] = char(codes[i]) end
  return table.concat(codes)
end
return {{state.decisions, quiet, first, stop, count, state.generation, live % 4294967296, tail, start, bytes_of(verdicts), bytes_of(choices),
        table.concat(refused), table.concat(evicted), is_behind and 1 or 0}}
"""
"""Additional KEYS: the job's own key set. ARGV: incarnation, place, token; now and lease as above; the fields of `BatchRequest`. Numbers of values
are differences to `known`, 4 bytes each. A wanted value has 4 more bytes, its sharers. A candidate has 8 bytes for its key, 4 for the number of its
known value (0: none), and 1 for `keeps`. Returns the fields of `BatchReply`, or false."""

LEAVE: Final = f"""{_FUNCTIONS}
if has(ARGV[1], ARGV[2], ARGV[3]) then
  state.generation = state.generation + 1
  put_state()
  call('HDEL', KEYS[1], 'm' .. ARGV[2])
end
"""
"""ARGV: incarnation, place and token."""

MEMBERS: Final = f"""{_FUNCTIONS}
if not load() or state.incarnation ~= ARGV[1] then return false end
local found = {{state.generation}}
for place, m in pairs(members) do found[#found + 1] = {{place, m.since, tonumber(m.barred), m.digest, tonumber(m.num_bytes)}} end
return found
"""
"""ARGV: incarnation. Returns the generation, then place, since, whether it is barred, digest and bytes of each job."""

ENTRIES: Final = f"""{_FUNCTIONS}
if not load() or state.incarnation ~= ARGV[1] then return false end
local found = {{}}
for i = 2, #ARGV, 2 do
  found[#found + 1] = call('GETRANGE', KEYS[2], ARGV[i] * {KEY_BYTES}, ARGV[i + 1] * {KEY_BYTES} - 1)
  found[#found + 1] = call('GETRANGE', KEYS[3], ARGV[i] * {WORD_BYTES}, ARGV[i + 1] * {WORD_BYTES} - 1)
end
return found
"""
"""ARGV: incarnation, then first slot and end of each range. Returns the keys and the words of each range."""
