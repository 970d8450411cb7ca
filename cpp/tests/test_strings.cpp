#include <string>
#include <unordered_map>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/random.hpp"
#include "modyn/strings.hpp"

namespace {

struct Column {
  std::vector<std::int32_t> bounds{0};
  std::vector<std::uint8_t> data;

  explicit Column(const std::vector<std::string>& texts) {
    for (const auto& text : texts) {
      data.insert(data.end(), text.begin(), text.end());
      bounds.push_back(static_cast<std::int32_t>(data.size()));
    }
  }
  modyn::Strings strings() const { return {bounds.data(), bounds.size() - 1, data.data()}; }
};

std::uint64_t hash_of(const std::string& text) {
  return modyn::hash_string(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

}  // namespace

TEST_CASE("hashes of strings are those of all versions") {
  CHECK(hash_of("") == 0xF2FEA5823ED3A667);
  CHECK(hash_of("a") == 0x3FF63B9FDFCE4FD6);
  CHECK(hash_of("ab") == 0xAEF102C953A4F69B);
}

TEST_CASE("distinct strings are numbered in the order in which they come first") {
  modyn::Random random({1, 2, 3, 4});
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> texts;
    std::vector<std::uint8_t> valid(40, 0);
    const std::size_t first_bit = random.below(9), size = random.below(300);
    for (std::size_t row = 0; row < size; ++row) {
      // Includes long strings, and several strings with the same beginning.
      texts.push_back(std::string(random.below(2) * 70, 'x') + std::to_string(random.below(40)).substr(random.below(2)));
      if (random.below(8) != 0) valid[(first_bit + row) / 8] |= static_cast<std::uint8_t>(1U << ((first_bit + row) % 8));
    }
    const Column column(texts);
    std::vector<std::int64_t> codes(size, -7);
    const auto distinct = modyn::encode_strings(column.strings(), round % 2 == 0 ? nullptr : valid.data(), first_bit, codes.data());
    std::unordered_map<std::string, std::int64_t> numbers;
    for (std::size_t row = 0; row < size; ++row) {
      if (round % 2 != 0 && (valid[(first_bit + row) / 8] >> ((first_bit + row) % 8) & 1) == 0) {
        REQUIRE(codes[row] == -1);
        continue;
      }
      const auto [found, is_new] = numbers.emplace(texts[row], static_cast<std::int64_t>(numbers.size()));
      REQUIRE(codes[row] == found->second);
      const auto number = static_cast<std::size_t>(found->second);
      REQUIRE(distinct.hashes[number] == hash_of(texts[row]));
      if (is_new) REQUIRE(distinct.rows[number] == static_cast<std::int64_t>(row));
    }
    REQUIRE(distinct.rows.size() == numbers.size());
    REQUIRE(distinct.hashes.size() == numbers.size());
  }
}

TEST_CASE("strings whose bounds are none are refused") {
  const std::vector<std::int32_t> descending{0, 3, 2}, negative{-1, 2}, long_one{0, 5};
  const std::vector<std::uint8_t> data(4);
  CHECK_THROWS_AS(modyn::check_strings({descending.data(), 2, data.data()}, 4), modyn::InvalidArgument);
  CHECK_THROWS_AS(modyn::check_strings({negative.data(), 1, data.data()}, 4), modyn::InvalidArgument);
  CHECK_THROWS_AS(modyn::check_strings({long_one.data(), 1, data.data()}, 4), modyn::InvalidArgument);
  CHECK_NOTHROW(modyn::check_strings({long_one.data(), 0, data.data()}, 4));
}
