// Random choice of samples by strata, such as classes: one pass counts the strata, and one chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "modyn/random.hpp"

namespace modyn {

using Values = std::vector<std::int64_t>;

// Numbers values 0, 1, … in the order in which they are added, with a table for small values, such as most labels.
class ValueNumbers {
 public:
  static constexpr std::int32_t unknown = -1;

  std::size_t size() const { return values_.size(); }
  std::int64_t value(std::size_t number) const { return values_[number]; }
  std::int32_t find(std::int64_t value) const {
    if (static_cast<std::uint64_t>(value) < table_.size()) return table_[static_cast<std::size_t>(value)];
    const auto found = others_.find(value);
    return found == others_.end() ? unknown : found->second;
  }
  // `value` must be unknown, and fewer than 2^31 values known.
  std::int32_t add(std::int64_t value);

 private:
  std::vector<std::int32_t> table_ = std::vector<std::int32_t>(std::size_t{1} << 16, unknown);
  std::unordered_map<std::int64_t, std::int32_t> others_;
  Values values_;
};

// Counts how often each value occurs. One thread.
class ValueCounts {
 public:
  // `most`: largest number of different values, below 2^31.
  explicit ValueCounts(std::size_t most) : most_(most) {}

  // Returns false at the first value beyond `most`; true if all were counted.
  bool add(const std::int64_t* values, std::size_t count);
  // The values, ascending, and the count of each.
  std::pair<Values, Values> counts() const;

 private:
  std::size_t most_;
  ValueNumbers numbers_;
  Values counts_;
};

// Chooses a fixed number of each value from a stream. Every subset of this size has the same probability, for any chunks of the stream: the r-th
// last sample of a stratum is chosen with probability wanted / r (selection sampling, Fan, Muller and Rezucha 1962). One thread.
class StratifiedDraw {
 public:
  // `counts[i]`: number of occurrences of values[i] in the stream; `quotas[i]`: number of these to choose. Throws InvalidArgument if a value
  // repeats, a quota is negative or larger than its count, or the seed is all zero.
  StratifiedDraw(const Values& values, const Values& counts, const Values& quotas, const Seed& seed);

  // Returns the positions in [0, count) of the chosen values, ascending. Throws InvalidArgument for a value that was not counted, or occurs more
  // often.
  Values next(const std::int64_t* values, std::size_t count);

 private:
  struct Stratum {
    std::int64_t left;    // remaining samples of the stratum
    std::int64_t wanted;  // remaining samples to choose
  };

  ValueNumbers numbers_;
  std::vector<Stratum> strata_;
  Random random_;
};

}  // namespace modyn
