#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/gather.hpp"

namespace {

std::string take(const std::string& data, const std::vector<std::int64_t>& bounds, const std::vector<std::int64_t>& rows, std::size_t threads,
                 std::int64_t row_size = 0) {
  const auto num_records = row_size > 0 ? static_cast<std::int64_t>(data.size()) / row_size : static_cast<std::int64_t>(bounds.size()) - 1;
  const modyn::TakeRequest request{reinterpret_cast<const std::uint8_t*>(data.data()),
                                   static_cast<std::int64_t>(data.size()),
                                   row_size > 0 ? nullptr : bounds.data(),
                                   row_size,
                                   num_records,
                                   rows.data(),
                                   rows.size()};
  std::vector<std::int64_t> taken_bounds(rows.size() + 1);
  modyn::take_bounds(request, taken_bounds.data());
  std::string taken(static_cast<std::size_t>(taken_bounds.back()), '?');
  modyn::take(request, taken_bounds.data(), reinterpret_cast<std::uint8_t*>(taken.data()), threads);
  return taken;
}

}  // namespace

TEST_CASE("rows of any length, in any order, on any number of threads") {
  std::mt19937 random(5);
  std::string data;
  std::vector<std::int64_t> bounds{0};
  for (int i = 0; i < 3000; ++i) {
    data.append(random() % 7 == 0 ? 0 : random() % 700, static_cast<char>(i));
    bounds.push_back(static_cast<std::int64_t>(data.size()));
  }
  std::vector<std::int64_t> rows;
  std::string expected;
  for (int i = 0; i < 5000; ++i) {
    const auto row = static_cast<std::size_t>(random() % 3000);
    rows.push_back(static_cast<std::int64_t>(row));
    expected.append(data, static_cast<std::size_t>(bounds[row]), static_cast<std::size_t>(bounds[row + 1] - bounds[row]));
  }
  for (const std::size_t threads : {1, 2, 7}) CHECK(take(data, bounds, rows, threads) == expected);
  CHECK(take(data, bounds, {}, 2).empty());
}

TEST_CASE("rows of one length need no bounds") {
  CHECK(take("aabbccdd", {}, {3, 0, 0, 2}, 2, 2) == "ddaaaacc");
}

TEST_CASE("rows and bounds that cannot be are refused") {
  CHECK_THROWS_AS(take("aabb", {}, {2}, 1, 2), modyn::InvalidArgument);
  CHECK_THROWS_AS(take("aabb", {}, {-1}, 1, 2), modyn::InvalidArgument);
  CHECK_THROWS_AS(take("aabb", {0, 2, 5}, {1}, 1), modyn::InvalidArgument);
  CHECK_THROWS_AS(take("aabb", {0, 3, 2}, {1}, 1), modyn::InvalidArgument);
  CHECK_THROWS_AS(take("aabb", {-1, 3}, {0}, 1), modyn::InvalidArgument);
  CHECK(take("aabb", {0, 2, 5}, {0}, 1) == "aa");  // only what is asked for is looked at
}
