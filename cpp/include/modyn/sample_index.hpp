// Locations and columns of samples by key, for all segments of a dataset.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "modyn/column.hpp"

namespace modyn {

// Finds the last of some ascending numbers that is not above a given number, with a table over their range. If the numbers are evenly spread,
// like keys of full segments, this needs one or two comparisons; otherwise a binary search finishes it.
class Slots {
 public:
  Slots() = default;
  explicit Slots(std::vector<std::int64_t> starts);

  std::size_t size() const { return starts_.size(); }
  std::int64_t start(std::size_t slot) const { return starts_[slot]; }
  // `number` must be at least the first start.
  std::size_t find(std::int64_t number) const;

 private:
  std::uint64_t distance(std::int64_t number) const {
    return static_cast<std::uint64_t>(number) - static_cast<std::uint64_t>(starts_[0]);
  }

  std::vector<std::int64_t> starts_;
  std::vector<std::uint32_t> table_;  // by (number - starts_[0]) >> shift_: the slot of the first number there, plus one entry at the end
  unsigned shift_ = 0;
};

// The columns of one segment, whose keys are [first_key, end_key). File ids fit into 32 bits.
struct SegmentView {
  std::int64_t first_key;
  std::int64_t end_key;
  Column file_ids;
  Column offsets;
  Column lengths;
  Column labels;
  Column timestamps;
};

// Keys [first_key, end_key) of one segment whose file ids and offsets rise in constant steps.
struct Place {
  std::int64_t first_key;
  std::int64_t end_key;
  std::uint64_t file_id, file_stride;
  std::uint64_t offset, offset_stride;
  std::uint32_t segment;

  std::uint64_t row(std::int64_t key) const { return static_cast<std::uint64_t>(key) - static_cast<std::uint64_t>(first_key); }
};

// The places of all segments, in order of key. Empty if a segment does not consist of runs, or there are too many runs.
std::vector<Place> find_places(const std::vector<SegmentView>& segments);

// The requested columns, each an array with an entry for each key; null: not requested.
struct Answers {
  std::uint32_t* file_ids = nullptr;
  std::int64_t* offsets = nullptr;
  std::int64_t* lengths = nullptr;
  std::int64_t* labels = nullptr;
  std::int64_t* timestamps = nullptr;
};

// Immutable, so any number of threads may use it. A view of its columns: the caller keeps their memory alive.
class SampleIndex {
 public:
  // In order of key. Throws InvalidArgument if two segments overlap or one has no keys.
  explicit SampleIndex(const std::vector<SegmentView>& segments);

  // Fills `answers` in the order of `keys`, which may be unsorted and repeat. Returns false if a key is unknown; the answers are undefined then.
  bool look_up(const std::int64_t* keys, std::size_t count, const Answers& answers) const;
  // found[i]: whether keys[i] has an entry.
  void contains(const std::int64_t* keys, std::size_t count, bool* found) const;
  // Returns the length of every sample, if all are equally long.
  std::optional<std::int64_t> common_length() const { return common_length_; }

 private:
  // Keys that are looked up together: their segments and rows stay in the first-level cache while each column is read for all of them.
  static constexpr std::size_t kBlock = 256;
  struct Block {
    std::array<std::uint32_t, kBlock> slots;
    std::array<std::int64_t, kBlock> rows;
    bool one_segment = true;
    std::size_t last = 0;  // slot of the previous key: the next key often has the same slot
  };

  // Fills `block` with the next keys, and file ids and offsets by the places unless they are null. Returns false if a key is unknown.
  bool find(const std::int64_t* keys, std::size_t count, Block& block, std::uint32_t* file_ids, std::int64_t* offsets) const;
  template <typename T>
  void read(const std::vector<Column>& columns, const Block& block, std::size_t count, T* into) const;

  Slots slots_;
  std::vector<std::int64_t> end_keys_;
  std::vector<Place> places_;
  bool places_are_even_;  // they replace file_ids_ and offsets_: one search gives both, and the segment. Otherwise one for each segment
  Slots place_slots_;
  std::vector<Column> file_ids_, offsets_, lengths_, labels_, timestamps_;  // by slot
  std::optional<std::int64_t> common_length_;
};

}  // namespace modyn
