// Samples chosen at random by the strata that they fall into, such as classes: a pass that counts the strata, and one that chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "modyn/random.hpp"

namespace modyn {

using Values = std::vector<std::int64_t>;

// Numbers of values, 0, 1, … in the order in which they are added: by a table where values are small, as most labels are.
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
  // `value` must be unknown, and less than 2^31 values known.
  std::int32_t add(std::int64_t value);

 private:
  std::vector<std::int32_t> table_ = std::vector<std::int32_t>(std::size_t{1} << 16, unknown);
  std::unordered_map<std::int64_t, std::int32_t> others_;
  Values values_;
};

// Counts how often each value comes. One thread.
class ValueCounts {
 public:
  // `most`: different values at most, below 2^31.
  explicit ValueCounts(std::size_t most) : most_(most) {}

  // Returns whether all were counted: false at the first value that is one too many.
  bool add(const std::int64_t* values, std::size_t count);
  // The values, ascending, and the count of each.
  std::pair<Values, Values> counts() const;

 private:
  std::size_t most_;
  ValueNumbers numbers_;
  Values counts_;
};

// Chooses from a stream of values a fixed number of each, every subset of that size equally likely, whatever the chunks in which the stream
// comes: the r-th last sample of a stratum is chosen with probability wanted / r (selection sampling, Fan, Muller and Rezucha 1962). One thread.
class StratifiedDraw {
 public:
  // `counts[i]`: how often values[i] will come; `quotas[i]`: how many of these to choose. Throws InvalidArgument if a value repeats, a quota is
  // negative or more than its count, or the seed is all zero.
  StratifiedDraw(const Values& values, const Values& counts, const Values& quotas, const Seed& seed);

  // Positions in [0, count) of the next values that are chosen, ascending. Throws InvalidArgument for a value that was not counted, or comes more often.
  Values next(const std::int64_t* values, std::size_t count);

 private:
  struct Stratum {
    std::int64_t left;    // of its samples, yet to come
    std::int64_t wanted;  // of those
  };

  ValueNumbers numbers_;
  std::vector<Stratum> strata_;
  Random random_;
};

}  // namespace modyn
