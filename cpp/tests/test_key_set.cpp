#include <limits>
#include <memory>
#include <random>
#include <set>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/key_set.hpp"

namespace {

using Keys = std::vector<std::int64_t>;

modyn::KeySet set_of(const std::set<std::int64_t>& keys) {
  const Keys ascending(keys.begin(), keys.end());
  return {ascending.data(), ascending.size()};
}

void check_holds(const modyn::KeySet& keys, const std::set<std::int64_t>& expected) {
  CHECK(keys.size() == static_cast<std::int64_t>(expected.size()));
  CHECK(keys.between(0, std::numeric_limits<std::int64_t>::max()) == Keys(expected.begin(), expected.end()));
  Keys asked{-1, 0, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
  for (const std::int64_t key : expected) asked.insert(asked.end(), {key - 1, key, key + 1, key + 65'536});
  const auto found = std::make_unique<bool[]>(asked.size());
  keys.contains(asked.data(), asked.size(), found.get());
  for (std::size_t i = 0; i < asked.size(); ++i) CHECK(found[i] == (expected.count(asked[i]) == 1));
}

}  // namespace

TEST_CASE("sets of few and of many keys are united, and come back from their bytes") {
  std::mt19937_64 random(3);
  std::set<std::int64_t> expected;
  modyn::KeySet keys;
  for (const std::int64_t range : {10, 70'000, 200'000, 1 << 30}) {
    std::set<std::int64_t> added;
    for (int i = 0; i < 3000; ++i) added.insert(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(range)));
    for (std::int64_t key = 65'536; range == 70'000 && key < 72'000; ++key) added.insert(key);
    keys = keys.united(set_of(added));
    expected.insert(added.begin(), added.end());
    check_holds(keys, expected);
    const auto bytes = keys.serialized();
    check_holds(modyn::KeySet::parsed(bytes.data(), bytes.size()), expected);
  }
  const Keys between = keys.between(65'000, 66'000);
  CHECK(between == Keys(expected.lower_bound(65'000), expected.lower_bound(66'000)));
  CHECK(keys.between(10, 10).empty());
  check_holds(modyn::KeySet(), {});
}

TEST_CASE("keys that are no set are refused") {
  for (const Keys& keys : {Keys{-1}, Keys{3, 3}, Keys{70'000, 69'999}, Keys{70'000, 3}}) {
    CHECK_THROWS_AS(modyn::KeySet(keys.data(), keys.size()), modyn::InvalidArgument);
  }
}

TEST_CASE("bytes that are no set are refused, and never read beyond their end") {
  const auto good = set_of({1, 2, 70'000}).serialized();
  for (std::size_t size = 1; size < good.size(); ++size) {
    if (size == 16) continue;  // the first chunk alone
    CHECK_THROWS_AS(modyn::KeySet::parsed(good.data(), size), modyn::InvalidArgument);
  }
  for (const auto& [position, value] : {std::pair<std::size_t, std::uint8_t>{7, 0x80}, {6, 0xff}, {0, 1}, {10, 0xff}, {12, 9}}) {
    auto wrong = good;
    wrong[position] = value;
    CHECK_THROWS_AS(modyn::KeySet::parsed(wrong.data(), wrong.size()), modyn::InvalidArgument);
  }
  const std::vector<std::uint8_t> no_keys(12 + 65'536 / 8, 0);
  CHECK_THROWS_AS(modyn::KeySet::parsed(no_keys.data(), no_keys.size()), modyn::InvalidArgument);
}
