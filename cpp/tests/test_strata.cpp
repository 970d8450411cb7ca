#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/strata.hpp"

namespace {

using modyn::Seed;
using modyn::StratifiedDraw;
using modyn::ValueCounts;
using modyn::Values;

constexpr std::int64_t large = std::int64_t{1} << 40;

// Small values, values beyond the table, and negative values: 7 occurs five times, -3 three times, 2^40 twice, 0 once.
const Values stream = {7, -3, 7, large, 0, 7, -3, 7, large, 7, -3};
const Values values = {-3, 0, 7, large};
const Values counts = {3, 1, 5, 2};

// Positions chosen from `stream`, given in chunks of `size`.
Values chosen(const Values& quotas, const Seed& seed, std::size_t size) {
  StratifiedDraw draw(values, counts, quotas, seed);
  Values found;
  for (std::size_t first = 0; first < stream.size(); first += size) {
    for (const std::int64_t position : draw.next(stream.data() + first, std::min(size, stream.size() - first))) {
      found.push_back(position + static_cast<std::int64_t>(first));
    }
  }
  return found;
}

Seed seed_of(std::uint64_t number) {
  return {number * 0x9e3779b97f4a7c15ULL, number * 0xbf58476d1ce4e5b9ULL, number * 0x94d049bb133111ebULL, number ^ 0x5851f42d4c957f2dULL};
}

}  // namespace

TEST_CASE("values are counted in chunks of any size, up to the limit") {
  for (const std::size_t size : {1, 4, 11}) {
    ValueCounts counter(4);
    for (std::size_t first = 0; first < stream.size(); first += size) CHECK(counter.add(stream.data() + first, std::min(size, stream.size() - first)));
    CHECK(counter.counts().first == values);
    CHECK(counter.counts().second == counts);
    const std::int64_t another = 8;
    CHECK(counter.add(values.data(), 4));
    CHECK_FALSE(counter.add(&another, 1));
  }
  CHECK(ValueCounts(0).counts().first.empty());
}

TEST_CASE("each stratum gives its quota, the same for chunks of any size") {
  const Values quotas = {2, 1, 3, 0};
  for (std::uint64_t number = 1; number <= 100; ++number) {
    const Values found = chosen(quotas, seed_of(number), 1);
    CHECK(std::is_sorted(found.begin(), found.end()));
    std::map<std::int64_t, std::int64_t> given;
    for (const std::int64_t position : found) ++given[stream[static_cast<std::size_t>(position)]];
    CHECK(given == std::map<std::int64_t, std::int64_t>{{-3, 2}, {0, 1}, {7, 3}});
    for (const std::size_t size : {4, 11}) CHECK(chosen(quotas, seed_of(number), size) == found);
  }
  CHECK(chosen({0, 0, 0, 0}, seed_of(1), 4).empty());
  CHECK(chosen(counts, seed_of(1), 4).size() == stream.size());
}

TEST_CASE("each subset of a stratum is equally likely, and strata are independent") {
  // 10 subsets of two of the five, 3 of one of the three.
  std::map<Values, std::size_t> found;
  const std::size_t total = 60'000;
  for (std::uint64_t number = 1; number <= total; ++number) ++found[chosen({1, 0, 2, 0}, seed_of(number), 11)];
  CHECK(found.size() == 30);
  double sum = 0;
  const double expected = total / 30.0;
  for (const auto& entry : found) sum += (static_cast<double>(entry.second) - expected) * (static_cast<double>(entry.second) - expected) / expected;
  CHECK(std::abs(sum - 29) / std::sqrt(2 * 29) < 5);
}

TEST_CASE("what does not fit is refused") {
  const Seed seed = seed_of(1);
  CHECK_THROWS_AS(StratifiedDraw({1, 1}, {2, 2}, {1, 1}, seed), modyn::InvalidArgument);
  CHECK_THROWS_AS(StratifiedDraw({1, 2}, {2, 2}, {1, 3}, seed), modyn::InvalidArgument);
  CHECK_THROWS_AS(StratifiedDraw({1, 2}, {2, 2}, {1, -1}, seed), modyn::InvalidArgument);
  CHECK_THROWS_AS(StratifiedDraw({1, 2}, {2}, {1, 1}, seed), modyn::InvalidArgument);
  CHECK_THROWS_AS(StratifiedDraw({1}, {2}, {1}, Seed{}), modyn::InvalidArgument);
  StratifiedDraw draw({1}, {2}, {1}, seed);
  const Values thrice = {1, 1, 1}, other = {5};
  CHECK_THROWS_AS(draw.next(other.data(), 1), modyn::InvalidArgument);
  CHECK_THROWS_AS(draw.next(thrice.data(), 3), modyn::InvalidArgument);
}
