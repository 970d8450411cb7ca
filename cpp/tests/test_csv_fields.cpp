#include <string>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/csv_fields.hpp"
#include "modyn/errors.hpp"

namespace {

std::pair<std::string, std::size_t> reordered(std::string row, const std::vector<std::int64_t>& order) {
  const std::size_t fields = modyn::FieldReorderer(order, ',', '"').reorder(row.data(), row.size());
  return {row, fields};
}

using Found = std::pair<std::string, std::size_t>;

}  // namespace

TEST_CASE("fields are put in another order, quotes and empty ones included") {
  CHECK(reordered("a,bb,ccc", {2, 0, 1}) == Found{"ccc,a,bb", 3});
  CHECK(reordered("\"x,y\",,\"q\"\"\"", {1, 2, 0}) == Found{",\"q\"\"\",\"x,y\"", 3});
  CHECK(reordered("1,\"a\nb\"c,", {2, 1, 0}) == Found{",\"a\nb\"c,1", 3});
  CHECK(reordered(",", {1, 0}) == Found{",", 2});
  CHECK(reordered("", {0}) == Found{"", 1});
}

TEST_CASE("a row with another number of fields stays as it is") {
  CHECK(reordered("a,b", {2, 0, 1}) == Found{"a,b", 2});
  CHECK(reordered("a,b,c,d", {2, 0, 1}) == Found{"a,b,c,d", 4});
}

TEST_CASE("an order holds each field once") {
  using modyn::FieldReorderer;
  CHECK_THROWS_AS(FieldReorderer({0, 0}, ',', '"'), modyn::InvalidArgument);
  CHECK_THROWS_AS(FieldReorderer({1, 2}, ',', '"'), modyn::InvalidArgument);
  CHECK_THROWS_AS(FieldReorderer({-1, 0}, ',', '"'), modyn::InvalidArgument);
}
