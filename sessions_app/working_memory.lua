-- Every operation on one scope's working memory, each one atomic step.
--
-- An entry is one string: "VERSION TTL_MS POLICY LENGTH\nJSON". POLICY is f (fixed) or
-- s (sliding), LENGTH the items of a list or "-". Value and expiry are set by a single
-- SET; the two indexes, which list the names, live longer than any entry they name.
--
-- KEYS: names (by name), expiries (by time), ended, erased (the session is), runs (of
--       the session that have a memory), entry (or the prefix of all entries),
--       record (of an idempotency key), sum (scratch for arithmetic)
-- ARGV: operation, name, fence, milliseconds an expired name is remembered,
--       fingerprint or "", milliseconds a record is kept, If-Match or "",
--       If-None-Match or "", run or "", then what the operation takes

local names, expiries, ended, erased, runs, entry, record, sum = unpack(KEYS)
local operation, name, fence = ARGV[1], ARGV[2], tonumber(ARGV[3])
local remembered, fingerprint, record_ms = tonumber(ARGV[4]), ARGV[5], ARGV[6]
local if_match, if_none_match, run = ARGV[7], ARGV[8], ARGV[9]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

local function failed(reply)
  return type(reply) == 'table' and reply.err
end

local function read(key)
  local raw = redis.call('GET', key)
  if not raw then return nil end
  local version, ttl, policy, length, value =
    string.match(raw, '^(%d+) (%d+) (%a) (%S+)\n(.*)$')
  return {
    version = version, ttl = tonumber(ttl), policy = policy, length = length,
    value = value, ends = redis.call('PEXPIRETIME', key),
  }
end

local function told(it, is_new)
  return table.concat({
    it.version, whole(it.ttl), it.policy, it.length, whole(it.ends),
    whole(it.ends - now), is_new and '1' or '0',
  }, ' ')
end

local function drop_name(each)
  redis.call('ZREM', names, each)
  redis.call('ZREM', expiries, each)
end

-- Put the name into the indexes and make them outlive it; an error leaves neither a
-- new name nor an index without an expiry.
local function index(ends)
  local known = redis.call('ZSCORE', names, name)
  redis.call('ZADD', names, 0, name)
  redis.call('ZADD', expiries, whole(ends), name)
  local indexes = {names, expiries}
  if run ~= '' then
    redis.call('SADD', runs, run)
    indexes[3] = runs
  end
  local trouble
  for _, key in ipairs(indexes) do
    if redis.call('PEXPIRETIME', key) < ends + remembered then
      local reply = redis.pcall('PEXPIREAT', key, whole(ends + remembered))
      if failed(reply) then trouble = reply end
    end
  end
  if trouble then
    if not known then drop_name(name) end
    for _, key in ipairs(indexes) do
      if redis.call('PTTL', key) == -1 then redis.call('DEL', key) end
    end
  end
  return trouble
end

local function store(it, is_new)
  local trouble = index(it.ends)
  if trouble then return trouble end
  local head = table.concat({it.version, whole(it.ttl), it.policy, it.length}, ' ')
  local reply =
    redis.pcall('SET', entry, head .. '\n' .. it.value, 'PXAT', whole(it.ends))
  if failed(reply) and is_new then drop_name(name) end
  return failed(reply) and reply or nil
end

local function keep_answer(answer, number)
  if fingerprint ~= '' then
    local kept = fingerprint .. ' ' .. (number or '-') .. ' ' .. answer
    redis.call('SET', record, kept, 'PX', record_ms)
  end
end

-- Store the entry in `found`'s place, answer with it and remember the answer.
local function write(it, found, number)
  -- Grows over deletions and expiries too: an old version must never match a new entry.
  local born = time[1] * 1000000 + time[2]
  it.version = whole(found and found.version + 1 or born)
  local trouble = store(it, not found)
  if trouble then return trouble end
  local answer = told(it, not found)
  keep_answer(answer, number)
  return {'ok', answer, number or ''}
end

-- Make room for a new name; false if the scope holds as many entries as it may.
local function has_room(limit)
  local old = redis.call(
    'ZRANGEBYSCORE', expiries, '-inf', whole(now - remembered), 'LIMIT', 0, 50)
  if redis.call('ZCARD', expiries) >= 2 * limit then
    old = redis.call('ZRANGEBYSCORE', expiries, '-inf', whole(now), 'LIMIT', 0, 500)
  end
  for _, each in ipairs(old) do drop_name(each) end
  return redis.call('ZCOUNT', expiries, whole(now), '+inf') < limit
end

local function absent()
  local ends = redis.call('ZSCORE', expiries, name)
  return {'absent', ends and whole(math.min(tonumber(ends), now)) or ''}
end

local function list(after, limit, most_bytes)
  local from = after == '' and '-' or '(' .. after
  local found = redis.call('ZRANGEBYLEX', names, from, '+', 'LIMIT', 0, limit + 1)
  local items, bytes = {'ok', '0'}, 0
  for position, each in ipairs(found) do
    if position > limit or bytes > most_bytes then
      items[2] = '1'
      break
    end
    local it = read(entry .. each)
    if it then
      items[#items + 1] = {each, told(it), it.value}
      bytes = bytes + #it.value
    else
      local ends = redis.call('ZSCORE', expiries, each) or now
      items[#items + 1] = {each, whole(math.min(tonumber(ends), now))}
    end
  end
  return items
end

local function empty(its_names, its_expiries, its_entry)
  local dropped = 0
  repeat
    local some = redis.call('ZRANGE', its_names, 0, 499)
    for _, each in ipairs(some) do
      dropped = dropped + redis.call('UNLINK', its_entry .. each)
      redis.call('ZREM', its_names, each)
    end
  until #some == 0
  redis.call('DEL', its_expiries)
  return dropped
end

local function end_scope(marker_ms)
  local through = redis.call('GET', ended)
  if through and tonumber(through) >= fence then return {'ok', '0'} end
  redis.call('SET', ended, whole(fence), 'PX', marker_ms)
  return {'ok', whole(empty(names, expiries, entry))}
end

-- The session and every run of it, for good.
local function erase(marker_ms, run_prefix)
  redis.call('SET', erased, '1', 'PX', marker_ms)
  local dropped = empty(names, expiries, entry)
  for _, each in ipairs(redis.call('SMEMBERS', runs)) do
    local base = run_prefix .. each
    dropped = dropped
      + empty(base .. ':names', base .. ':expiries', base .. ':entry:')
  end
  redis.call('DEL', runs)
  return {'ok', whole(dropped)}
end

if operation == 'list' then
  return list(name, tonumber(ARGV[10]), tonumber(ARGV[11]))
elseif operation == 'end' then
  return end_scope(ARGV[10])
elseif operation == 'erase' then
  return erase(ARGV[10], ARGV[11])
end

if fingerprint ~= '' then
  local kept = redis.call('GET', record)
  if kept then
    local of, number, answer = string.match(kept, '^(%S+) (%S+) (.*)$')
    if of ~= fingerprint then return {'reused'} end
    return {'replayed', answer, number == '-' and '' or number}
  end
end

local through = redis.call('GET', ended)
if through and fence <= tonumber(through) then return {'ended'} end
if redis.call('EXISTS', erased) == 1 then return {'ended'} end

local found = read(entry)

if operation == 'get' then
  if not found then return absent() end
  if found.policy == 's' then
    found.ends = now + found.ttl
    local trouble = index(found.ends)
    if trouble then return trouble end
    redis.call('PEXPIREAT', entry, whole(found.ends))
  end
  return {'ok', told(found), found.value}
end

if if_match ~= '' then
  local matches = found and (if_match == '*' or if_match == found.version)
  if not matches then
    return {'conflict', found and found.version or '0', found and found.value or ''}
  end
end
if if_none_match ~= '' and found then
  return {'exists', found.version}
end

if operation == 'delete' then
  local gone = redis.call('UNLINK', entry)
  local reply = gone == 1 and {'ok', '', ''} or absent()
  drop_name(name)
  if gone == 1 then keep_answer('') end
  return reply
end

if operation == 'touch' then
  if not found then return absent() end
  if ARGV[10] ~= '' then found.ttl = tonumber(ARGV[10]) end
  found.ends = now + found.ttl
  local trouble = store(found, false)
  if trouble then return trouble end
  local answer = told(found)
  keep_answer(answer)
  return {'ok', answer, ''}
end

-- What is left writes a value, and takes: TTL, policy, most bytes, most entries.
local ttl, policy = tonumber(ARGV[10]), ARGV[11]
local most_bytes, most_entries = tonumber(ARGV[12]), tonumber(ARGV[13])
if not found and not has_room(most_entries) then return {'full'} end

if operation == 'put' then
  local it = {
    ttl = ttl, policy = policy, ends = now + ttl, value = ARGV[14], length = ARGV[15],
  }
  return write(it, found)
end

-- A counter or list that exists keeps its life; a new one begins with the given.
local it = found and
  {ttl = found.ttl, policy = found.policy, ends = found.ends, length = found.length}
  or {ttl = ttl, policy = policy, ends = now + ttl, length = '-'}
if found and found.policy == 's' then it.ends = now + found.ttl end

if operation == 'increment' then
  local before = found and found.value or '0'
  if not string.match(before, '^-?%d+$') then return {'not_an_integer'} end
  -- Redis adds in 64 bits; Lua's numbers are doubles and would round.
  redis.call('SET', sum, before, 'PX', 1000)
  local reply = redis.pcall('INCRBY', sum, ARGV[14])
  it.value = redis.call('GET', sum)
  redis.call('DEL', sum)
  if failed(reply) then return {'overflow'} end
  return write(it, found, it.value)
end

if operation == 'append' then
  if found and found.length == '-' then return {'not_a_list'} end
  local count = found and tonumber(found.length) or 0
  local before = count == 0 and '[' or string.sub(found.value, 1, -2) .. ','
  it.value, it.length = before .. ARGV[14] .. ']', whole(count + 1)
  if #it.value > most_bytes then return {'too_large'} end
  return write(it, found)
end
