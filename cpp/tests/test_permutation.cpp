#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/copy.hpp"
#include "modyn/errors.hpp"
#include "modyn/permutation.hpp"

namespace {

using Numbers = std::vector<std::int64_t>;

Numbers order_of(std::size_t count, std::uint64_t seed, std::size_t threads = 1) {
  Numbers order(count, -1);
  modyn::permutation({seed, 2, 3, 4}, count, order.data(), threads);
  return order;
}

// Distance of counts from a uniform distribution, in standard deviations of a chi-squared sum.
double distance_from_even(const std::vector<std::size_t>& counts, std::size_t total) {
  const double expected = static_cast<double>(total) / static_cast<double>(counts.size());
  double sum = 0;
  for (const std::size_t count : counts) sum += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
  const auto freedom = static_cast<double>(counts.size() - 1);
  return std::abs(sum - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

TEST_CASE("every number comes once, in one bucket and chunk and in many") {
  for (const std::size_t count : {0, 1, 2, 3, 100, 16'384, 16'385, 40'000, 300'000, 1'000'000}) {
    Numbers order = order_of(count, 1);
    std::sort(order.begin(), order.end());
    Numbers all(count);
    std::iota(all.begin(), all.end(), 0);
    CHECK(order == all);
  }
}

TEST_CASE("numbers are picked in any order, and again; a row that does not exist is refused") {
  Numbers rows = order_of(100, 3);
  rows.push_back(7);
  const Numbers values = order_of(100, 4);
  Numbers found(rows.size());
  modyn::pick(values.data(), values.size(), rows.data(), rows.size(), found.data());
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(found[i] == values[static_cast<std::size_t>(rows[i])]);
  for (const std::int64_t wrong : {-1, 100}) {
    rows[50] = wrong;
    CHECK_THROWS_AS(modyn::pick(values.data(), values.size(), rows.data(), rows.size(), found.data()), modyn::InvalidArgument);
  }
}

TEST_CASE("the seed decides the order, which is the same for ever") {
  CHECK(order_of(50'000, 1) == order_of(50'000, 1));
  CHECK(order_of(50'000, 1) != order_of(50'000, 2));
  CHECK(order_of(10, 1) == Numbers{1, 6, 0, 4, 5, 2, 3, 8, 9, 7});
  const Numbers large = order_of(50'000, 1);
  CHECK(Numbers(large.begin(), large.begin() + 4) == Numbers{31393, 33431, 49425, 22499});
}

TEST_CASE("the order does not depend on the number of threads") {
  for (const std::size_t count : {100, 50'000, 1'000'000}) {
    for (const std::size_t threads : {2, 7}) CHECK(order_of(count, 5, threads) == order_of(count, 5));
  }
}

TEST_CASE("all orders of four numbers are equally likely") {
  std::vector<std::size_t> counts(24);
  for (std::uint64_t seed = 1; seed <= 24'000; ++seed) {
    Numbers order(4);
    modyn::permutation({seed * 0x9e3779b97f4a7c15ULL, seed * 0xbf58476d1ce4e5b9ULL, seed * 0x94d049bb133111ebULL, seed ^ 0x5851f42d4c957f2dULL}, 4,
                       order.data(), 1);
    std::size_t rank = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      rank *= 4 - i;
      for (std::size_t j = i + 1; j < 4; ++j) rank += static_cast<std::size_t>(order[j] < order[i]);
    }
    ++counts[rank];
  }
  CHECK(distance_from_even(counts, 24'000) < 5);
}

TEST_CASE("where a number lands does not depend on the number, with many buckets") {
  constexpr std::size_t count = 600'000, parts = 20;
  const Numbers order = order_of(count, 7);
  std::vector<std::size_t> counts(parts * parts);
  for (std::size_t i = 0; i < count; ++i) ++counts[i * parts / count * parts + static_cast<std::size_t>(order[i]) * parts / count];
  CHECK(distance_from_even(counts, count) < 5);
}

TEST_CASE("neighbours come in no order of their own, with many buckets") {
  constexpr std::size_t count = 600'000;
  const Numbers order = order_of(count, 9);
  std::size_t ascents = 0;
  for (std::size_t i = 1; i < count; ++i) ascents += static_cast<std::size_t>(order[i - 1] < order[i]);
  // The number of ascents of a random permutation has mean (n - 1) / 2 and variance (n + 1) / 12.
  CHECK(std::abs(static_cast<double>(ascents) - (count - 1) / 2.0) < 5 * std::sqrt((count + 1) / 12.0));
}
