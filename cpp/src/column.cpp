#include "modyn/column.hpp"

#include <algorithm>
#include <functional>
#include <string>

#include "modyn/errors.hpp"

namespace modyn {

Runs find_runs(const std::int64_t* values, std::size_t count, std::size_t max_runs) {
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

Runs Column::to_runs(std::int64_t num_rows) const {
  if (kind_ == Kind::constant) return {{0}, {value_}, {0}};
  if (kind_ != Kind::runs) return {};
  const auto* content = static_cast<const std::int64_t*>(data_);
  const auto part = [&](std::int64_t number) { return std::vector<std::int64_t>(content + number * value_, content + (number + 1) * value_); };
  Runs runs{part(0), part(1), part(2)};
  const bool ascend = std::adjacent_find(runs.starts.begin(), runs.starts.end(), std::greater_equal<>()) == runs.starts.end();
  if (!ascend || runs.starts.front() != 0 || runs.starts.back() >= num_rows) return {};
  return runs;
}

Column Column::plain(const std::uint8_t* data, std::size_t width) {
  switch (width) {
    case 1:
      return {Kind::int8, data, 0};
    case 2:
      return {Kind::int16, data, 0};
    case 4:
      return {Kind::int32, data, 0};
    case 8:
      return {Kind::int64, data, 0};
    default:
      throw InvalidArgument("values of a column have 1, 2, 4 or 8 bytes, not " + std::to_string(width));
  }
}

}  // namespace modyn
