#include "modyn/strata.hpp"

#include <algorithm>
#include <string>

#include "modyn/errors.hpp"

namespace modyn {

std::int32_t ValueNumbers::add(std::int64_t value) {
  const auto number = static_cast<std::int32_t>(values_.size());
  values_.push_back(value);
  if (static_cast<std::uint64_t>(value) < table_.size()) table_[static_cast<std::size_t>(value)] = number;
  else others_.emplace(value, number);
  return number;
}

bool ValueCounts::add(const std::int64_t* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t value = values[i];
    std::int32_t number = numbers_.find(value);
    if (number == ValueNumbers::unknown) {
      if (numbers_.size() == most_) return false;
      number = numbers_.add(value);
      counts_.push_back(0);
    }
    ++counts_[static_cast<std::size_t>(number)];
  }
  return true;
}

std::pair<Values, Values> ValueCounts::counts() const {
  std::vector<std::pair<std::int64_t, std::int64_t>> sorted;
  sorted.reserve(numbers_.size());
  for (std::size_t number = 0; number < numbers_.size(); ++number) sorted.emplace_back(numbers_.value(number), counts_[number]);
  std::sort(sorted.begin(), sorted.end());
  std::pair<Values, Values> columns;
  for (const auto& [value, count] : sorted) {
    columns.first.push_back(value);
    columns.second.push_back(count);
  }
  return columns;
}

StratifiedDraw::StratifiedDraw(const Values& values, const Values& counts, const Values& quotas, const Seed& seed) : random_(seed) {
  if (seed == Seed{}) throw InvalidArgument("a seed of zeros gives no random numbers");
  if (values.size() != counts.size() || values.size() != quotas.size()) throw InvalidArgument("values, counts and quotas differ in length");
  strata_.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string which = "value " + std::to_string(values[i]);
    if (numbers_.find(values[i]) != ValueNumbers::unknown) throw InvalidArgument(which + " comes twice");
    if (quotas[i] < 0 || quotas[i] > counts[i]) {
      throw InvalidArgument("cannot choose " + std::to_string(quotas[i]) + " of the " + std::to_string(counts[i]) + " of " + which);
    }
    numbers_.add(values[i]);
    strata_.push_back({counts[i], quotas[i]});
  }
}

Values StratifiedDraw::next(const std::int64_t* values, std::size_t count) {
  Values chosen;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t number = numbers_.find(values[i]);
    if (number == ValueNumbers::unknown || strata_[static_cast<std::size_t>(number)].left == 0) {
      throw InvalidArgument("value " + std::to_string(values[i]) + " comes more often than it was counted");
    }
    Stratum& stratum = strata_[static_cast<std::size_t>(number)];
    const std::int64_t left = stratum.left--;
    if (stratum.wanted == 0) continue;
    if (stratum.wanted < left && random_.unit() * static_cast<double>(left) >= static_cast<double>(stratum.wanted)) continue;
    --stratum.wanted;
    chosen.push_back(static_cast<std::int64_t>(i));
  }
  return chosen;
}

}  // namespace modyn
