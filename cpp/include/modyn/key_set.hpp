// A set of keys for frequent lookups that grows in batches: sorted positions in sparse chunks, bits in dense ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "modyn/sample_index.hpp"

namespace modyn {

// Keys are not negative. Immutable, so any number of threads may use it. A set that is made from another set shares all unchanged chunks of
// 65,536 keys with that set, so adding a few keys to a large set copies little.
class KeySet {
 public:
  KeySet() = default;
  // `keys` ascend strictly. Throws InvalidArgument if they do not, or if one is negative.
  KeySet(const std::int64_t* keys, std::size_t count);
  // Reads the output of `serialized`. Throws InvalidArgument if it is not valid.
  static KeySet parsed(const std::uint8_t* data, std::size_t size);
  std::vector<std::uint8_t> serialized() const;

  std::int64_t size() const { return size_; }
  KeySet united(const KeySet& other) const;
  // found[i]: whether the set contains keys[i], which may be any number.
  void contains(const std::int64_t* keys, std::size_t count, bool* found) const;
  // Keys in [first, end), ascending.
  std::vector<std::int64_t> between(std::int64_t first, std::int64_t end) const;

 private:
  struct Chunk {
    std::vector<std::uint16_t> positions;  // ascending; empty if there are bits
    std::vector<std::uint64_t> bits;
    std::size_t size() const;
    bool contains(std::uint16_t position) const;
    template <typename Visit>
    void each(const Visit& visit) const;
    static std::shared_ptr<const Chunk> of(std::vector<std::uint16_t> positions);
  };
  using Chunks = std::vector<std::shared_ptr<const Chunk>>;
  KeySet(std::vector<std::int64_t> ids, Chunks chunks);

  Slots ids_;  // of the chunks: their keys divided by 65,536
  Chunks chunks_;
  std::int64_t size_ = 0;
};

}  // namespace modyn
