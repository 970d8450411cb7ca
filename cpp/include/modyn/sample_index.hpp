// Where the samples of these keys are, and what is known of them: all segments of a dataset together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "modyn/column.hpp"

namespace modyn {

// Finds the last of ascending numbers that is not above a given one, by a table over their range: a look or two where numbers are
// spread evenly, as keys of full segments are, and a binary search of the rest where they are not.
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
  std::vector<std::uint32_t> table_;  // by (number - starts_[0]) >> shift_: the slot of the first number there; one entry more at the end
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

// What to look up, one array of as many entries as there are keys for each; null: not wanted.
struct Answers {
  std::uint32_t* file_ids = nullptr;
  std::int64_t* offsets = nullptr;
  std::int64_t* lengths = nullptr;
  std::int64_t* labels = nullptr;
  std::int64_t* timestamps = nullptr;
};

// Immutable, any number of threads. A view of its columns: whoever makes it keeps their memory alive.
class SampleIndex {
 public:
  // In order of key. Throws InvalidArgument if two segments overlap or one has no keys.
  explicit SampleIndex(const std::vector<SegmentView>& segments);

  // Fills `answers` in the order of `keys`, which may be in any order and repeat. False if a key is unknown; then they mean nothing.
  bool look_up(const std::int64_t* keys, std::size_t count, const Answers& answers) const;
  // found[i]: whether there is an entry for keys[i].
  void contains(const std::int64_t* keys, std::size_t count, bool* found) const;
  // The length of every sample, if they are all equally long.
  std::optional<std::int64_t> common_length() const { return common_length_; }

 private:
  template <typename T>
  void read(const std::vector<Column>& columns, const std::uint32_t* slots, const std::int64_t* rows, std::size_t count, bool one_segment,
            T* into) const;

  Slots slots_;
  std::vector<std::int64_t> end_keys_;
  std::vector<Column> file_ids_, offsets_, lengths_, labels_, timestamps_;  // by slot
  std::optional<std::int64_t> common_length_;
};

}  // namespace modyn
