#include "modyn/key_set.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

constexpr unsigned kChunkShift = 16;
constexpr std::size_t kChunkKeys = std::size_t{1} << kChunkShift;
constexpr std::size_t kWords = kChunkKeys / 64;
// With more positions than this, a bit set of the chunk takes less memory.
constexpr std::size_t kMostPositions = kWords * 8 / sizeof(std::uint16_t);

std::uint16_t position_of(std::int64_t key) { return static_cast<std::uint16_t>(key & (kChunkKeys - 1)); }

}  // namespace

std::size_t KeySet::Chunk::size() const {
  if (bits.empty()) return positions.size();
  std::size_t count = 0;
  for (const std::uint64_t word : bits) count += static_cast<std::size_t>(__builtin_popcountll(word));
  return count;
}

bool KeySet::Chunk::contains(std::uint16_t position) const {
  if (!bits.empty()) return ((bits[position / 64] >> (position % 64)) & 1) != 0;
  // A binary search that multiplies instead of branching, because its branches cannot be predicted. A chunk has at least one key.
  const std::uint16_t* base = positions.data();
  for (std::size_t left = positions.size(); left > 1;) {
    const std::size_t half = left / 2;
    base += static_cast<std::size_t>(base[half] <= position) * half;
    left -= half;
  }
  return *base == position;
}

template <typename Visit>
void KeySet::Chunk::each(const Visit& visit) const {
  for (const std::uint16_t position : positions) visit(position);
  for (std::size_t word = 0; word < bits.size(); ++word) {
    for (std::uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
      visit(static_cast<std::uint16_t>(word * 64 + static_cast<std::size_t>(__builtin_ctzll(rest))));
    }
  }
}

std::shared_ptr<const KeySet::Chunk> KeySet::Chunk::of(std::vector<std::uint16_t> positions) {
  auto chunk = std::make_shared<Chunk>();
  if (positions.size() <= kMostPositions) {
    chunk->positions = std::move(positions);
  } else {
    chunk->bits.resize(kWords);
    for (const std::uint16_t position : positions) chunk->bits[position / 64] |= std::uint64_t{1} << (position % 64);
  }
  return chunk;
}

KeySet::KeySet(std::vector<std::int64_t> ids, Chunks chunks) : ids_(std::move(ids)), chunks_(std::move(chunks)) {
  for (const auto& chunk : chunks_) size_ += static_cast<std::int64_t>(chunk->size());
}

KeySet::KeySet(const std::int64_t* keys, std::size_t count) {
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < count;) {
    ids.push_back(keys[i] >> kChunkShift);
    std::vector<std::uint16_t> positions;
    for (; i < count && keys[i] >> kChunkShift == ids.back(); ++i) {
      if (keys[i] < 0 || (i > 0 && keys[i] <= keys[i - 1])) throw InvalidArgument("keys of a set ascend and are not negative");
      positions.push_back(position_of(keys[i]));
    }
    chunks_.push_back(Chunk::of(std::move(positions)));
  }
  ids_ = Slots(std::move(ids));
  size_ = static_cast<std::int64_t>(count);
}

std::vector<std::uint8_t> KeySet::serialized() const {
  std::vector<std::uint8_t> bytes;
  const auto append = [&bytes](const auto* values, std::size_t count) {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(values);
    bytes.insert(bytes.end(), begin, begin + count * sizeof(*values));
  };
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const std::int64_t id = ids_.start(i);
    const auto positions = static_cast<std::uint32_t>(chunks_[i]->positions.size());  // 0: bits
    append(&id, 1);
    append(&positions, 1);
    append(chunks_[i]->positions.data(), positions);
    append(chunks_[i]->bits.data(), chunks_[i]->bits.size());
  }
  return bytes;
}

KeySet KeySet::parsed(const std::uint8_t* data, std::size_t size) {
  const std::uint8_t* const end = data + size;
  const auto read = [&](auto* into, std::size_t count) {
    const std::size_t bytes = count * sizeof(*into);
    if (static_cast<std::size_t>(end - data) < bytes) throw InvalidArgument("a set of keys ends too early");
    std::memcpy(into, data, bytes);
    data += bytes;
  };
  std::vector<std::int64_t> ids;
  Chunks chunks;
  while (data != end) {
    std::int64_t id = 0;
    std::uint32_t count = 0;
    read(&id, 1);
    read(&count, 1);
    if (id < 0 || id >> (63 - kChunkShift) != 0 || (!ids.empty() && id <= ids.back()) || count > kMostPositions) {
      throw InvalidArgument("a set of keys has a chunk that cannot be");
    }
    auto chunk = std::make_shared<Chunk>();
    if (count > 0) {
      chunk->positions.resize(count);
      read(chunk->positions.data(), count);
      if (std::adjacent_find(chunk->positions.begin(), chunk->positions.end(), std::greater_equal<>()) != chunk->positions.end()) {
        throw InvalidArgument("a set of keys has positions that do not ascend");
      }
    } else {
      chunk->bits.resize(kWords);
      read(chunk->bits.data(), kWords);
      if (chunk->size() == 0) throw InvalidArgument("a set of keys has a chunk without keys");
    }
    ids.push_back(id);
    chunks.push_back(std::move(chunk));
  }
  return {std::move(ids), std::move(chunks)};
}

KeySet KeySet::united(const KeySet& other) const {
  std::vector<std::int64_t> ids;
  Chunks chunks;
  std::size_t mine = 0, theirs = 0;
  while (mine < chunks_.size() || theirs < other.chunks_.size()) {
    const bool only_mine = theirs == other.chunks_.size() || (mine < chunks_.size() && ids_.start(mine) < other.ids_.start(theirs));
    const bool only_theirs = mine == chunks_.size() || (theirs < other.chunks_.size() && other.ids_.start(theirs) < ids_.start(mine));
    ids.push_back(only_theirs ? other.ids_.start(theirs) : ids_.start(mine));
    if (only_mine) {
      chunks.push_back(chunks_[mine++]);
    } else if (only_theirs) {
      chunks.push_back(other.chunks_[theirs++]);
    } else {
      std::vector<std::uint16_t> first, second, both;
      chunks_[mine++]->each([&](std::uint16_t position) { first.push_back(position); });
      other.chunks_[theirs++]->each([&](std::uint16_t position) { second.push_back(position); });
      std::set_union(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(both));
      chunks.push_back(Chunk::of(std::move(both)));
    }
  }
  return {std::move(ids), std::move(chunks)};
}

void KeySet::contains(const std::int64_t* keys, std::size_t count, bool* found) const {
  std::fill_n(found, count, false);
  if (chunks_.empty()) return;
  const std::int64_t first = ids_.start(0), last = ids_.start(chunks_.size() - 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t id = keys[i] >> kChunkShift;
    if (id < first || id > last) continue;
    const std::size_t slot = ids_.find(id);
    found[i] = ids_.start(slot) == id && chunks_[slot]->contains(position_of(keys[i]));
  }
}

std::vector<std::int64_t> KeySet::between(std::int64_t first, std::int64_t end) const {
  std::vector<std::int64_t> keys;
  if (chunks_.empty() || first >= end) return keys;
  const std::int64_t first_id = std::max<std::int64_t>(first, 0) >> kChunkShift;
  std::size_t slot = first_id <= ids_.start(0) ? 0 : ids_.find(first_id);
  for (; slot < chunks_.size() && ids_.start(slot) << kChunkShift < end; ++slot) {
    chunks_[slot]->each([&](std::uint16_t position) {
      const std::int64_t key = (ids_.start(slot) << kChunkShift) + position;
      if (key >= first && key < end) keys.push_back(key);
    });
  }
  return keys;
}

}  // namespace modyn
