// A stored column of a segment of the sample index: integers in the narrowest type that holds them, one value for all rows, or runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "modyn/errors.hpp"

namespace modyn {

// Runs of values in constant steps. Row r in [starts[i], starts[i + 1]) has the value values[i] + strides[i] * (r - starts[i]), modulo 2^64.
// starts[0] is 0.
struct Runs {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> values;
  std::vector<std::int64_t> strides;
};

// Splits `values` into runs: the smallest possible number of runs, or one more. Returns no runs if there would be more than max_runs. Makes one
// pass, which stops as soon as there are too many runs.
inline Runs find_runs(const std::int64_t* values, std::size_t count, std::size_t max_runs) {
  const auto step = [&](std::size_t i) { return static_cast<std::uint64_t>(values[i]) - static_cast<std::uint64_t>(values[i - 1]); };
  Runs runs;
  for (std::size_t start = 0; start < count;) {
    if (runs.starts.size() == max_runs) return {};
    const std::uint64_t stride = start + 1 < count ? step(start + 1) : 0;
    std::size_t end = start + 1;
    while (end < count && step(end) == stride) ++end;
    runs.starts.push_back(static_cast<std::int64_t>(start));
    runs.values.push_back(values[start]);
    runs.strides.push_back(static_cast<std::int64_t>(stride));
    start = end;
  }
  return runs;
}

// Reads the values of a column as int64; floating point numbers as their bits. A view: the caller keeps the memory alive. Does not check row
// numbers. For valid rows, a damaged file causes wrong values, but never a read outside the memory.
class Column {
 public:
  static Column constant(std::int64_t value) { return {Kind::constant, nullptr, value}; }
  // `data` holds a value of `width` (1, 2, 4 or 8) bytes for each row, aligned to it. Throws InvalidArgument.
  static Column plain(const std::uint8_t* data, std::size_t width);
  // `data` holds the starts, then the values, then the strides of `count` runs. `count` is at least 1.
  static Column runs(const std::int64_t* data, std::size_t count) { return {Kind::runs, data, static_cast<std::int64_t>(count)}; }

  bool is_constant() const { return kind_ == Kind::constant; }
  // Returns the runs of its rows, one run for a constant. Returns no runs if it stores values, or if its runs are not valid runs of `num_rows`
  // rows.
  Runs to_runs(std::int64_t num_rows) const;
  std::int64_t at(std::int64_t row) const {
    std::int64_t value = 0;
    with_values([&](const auto& values) { value = values(row); });
    return value;
  }

  // into[i] = at(rows[i]), one loop for each kind of column. T: int64, or a narrower type if the caller knows that all values fit.
  template <typename T>
  void read(const std::int64_t* rows, std::size_t count, T* into) const;

 private:
  enum class Kind : std::uint8_t { constant, int8, int16, int32, int64, runs };
  Column(Kind kind, const void* data, std::int64_t value) : data_(data), value_(value), kind_(kind) {}

  // Calls use(values), where values(row) is the value of a row. Each kind of column has its own function, so that a loop in `use` can inline it.
  // Always inlined: at() is called for each row if rows are spread over many columns.
  template <typename Use>
  [[gnu::always_inline]] void with_values(const Use& use) const;
  template <typename Stored, typename Use>
  [[gnu::always_inline]] void with_stored(const Use& use) const {
    use([data = static_cast<const Stored*>(data_)](std::int64_t row) -> std::int64_t { return data[row]; });
  }
  std::size_t run_of(std::int64_t row) const;
  std::int64_t in_run(std::size_t run, std::int64_t row) const;

  const void* data_;
  std::int64_t value_;  // value of a constant, or number of runs
  Kind kind_;
};

inline Column Column::plain(const std::uint8_t* data, std::size_t width) {
  if (width == 1) return {Kind::int8, data, 0};
  if (width == 2) return {Kind::int16, data, 0};
  if (width == 4) return {Kind::int32, data, 0};
  if (width == 8) return {Kind::int64, data, 0};
  throw InvalidArgument("values of a column have 1, 2, 4 or 8 bytes, not " + std::to_string(width));
}

inline Runs Column::to_runs(std::int64_t num_rows) const {
  if (kind_ == Kind::constant) return {{0}, {value_}, {0}};
  if (kind_ != Kind::runs) return {};
  const auto* content = static_cast<const std::int64_t*>(data_);
  const auto part = [&](std::int64_t number) { return std::vector<std::int64_t>(content + number * value_, content + (number + 1) * value_); };
  Runs runs{part(0), part(1), part(2)};
  const bool ascend = std::adjacent_find(runs.starts.begin(), runs.starts.end(), std::greater_equal<>()) == runs.starts.end();
  if (!ascend || runs.starts.front() != 0 || runs.starts.back() >= num_rows) return {};
  return runs;
}

// Returns the last run that begins at or before `row`. It never reads the first start, so the result is a valid index for any starts.
inline std::size_t Column::run_of(std::int64_t row) const {
  const auto* starts = static_cast<const std::int64_t*>(data_);
  std::size_t base = 0;
  for (auto left = static_cast<std::size_t>(value_); left > 1;) {
    const std::size_t half = left / 2;
    // A multiplication instead of a branch, which could be predicted only half of the time.
    base += static_cast<std::size_t>(starts[base + half] <= row) * half;
    left -= half;
  }
  return base;
}

inline std::int64_t Column::in_run(std::size_t run, std::int64_t row) const {
  const auto* starts = static_cast<const std::int64_t*>(data_);
  const auto count = static_cast<std::size_t>(value_);
  const auto first = static_cast<std::uint64_t>(starts[count + run]);
  const auto stride = static_cast<std::uint64_t>(starts[2 * count + run]);
  return static_cast<std::int64_t>(first + stride * static_cast<std::uint64_t>(row - starts[run]));
}

template <typename Use>
inline void Column::with_values(const Use& use) const {
  switch (kind_) {
    case Kind::constant:
      return use([value = value_](std::int64_t) { return value; });
    case Kind::int8:
      return with_stored<std::int8_t>(use);
    case Kind::int16:
      return with_stored<std::int16_t>(use);
    case Kind::int32:
      return with_stored<std::int32_t>(use);
    case Kind::int64:
      return with_stored<std::int64_t>(use);
    case Kind::runs:
      return use([this](std::int64_t row) { return in_run(run_of(row), row); });
  }
}

template <typename T>
void Column::read(const std::int64_t* rows, std::size_t count, T* into) const {
  const auto each = [&](const auto& values) {
    for (std::size_t i = 0; i < count; ++i) into[i] = static_cast<T>(values(rows[i]));
  };
  if (kind_ == Kind::runs && count > 0) {
    const auto [low, high] = std::minmax_element(rows, rows + count);
    const std::size_t run = run_of(*low);
    if (run == run_of(*high)) return each([&](std::int64_t row) { return in_run(run, row); });
  }
  with_values(each);
}

}  // namespace modyn
