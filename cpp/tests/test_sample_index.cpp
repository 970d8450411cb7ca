#include <limits>
#include <random>
#include <string>

#include "doctest/doctest.h"
#include "modyn/column.hpp"
#include "modyn/errors.hpp"
#include "modyn/sample_index.hpp"

namespace {

using Values = std::vector<std::int64_t>;

struct StoredRuns {
  Values content;
  modyn::Column column = modyn::Column::constant(0);

  explicit StoredRuns(const Values& values) {
    const modyn::Runs runs = modyn::find_runs(values.data(), values.size(), values.size());
    for (const Values* part : {&runs.starts, &runs.values, &runs.strides}) content.insert(content.end(), part->begin(), part->end());
    column = modyn::Column::runs(content.data(), runs.starts.size());
  }
};

modyn::SegmentView segment(std::int64_t first_key, std::int64_t end_key, const modyn::Column& column, std::int64_t length = 7) {
  return {first_key, end_key, modyn::Column::constant(1), column, modyn::Column::constant(length), column, column};
}

}  // namespace

TEST_CASE("runs give back the values they were made of") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    Values values;
    const std::size_t pieces = 1 + random() % 6;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const std::uint64_t first = random(), stride = round % 2 ? random() : random() % 3;
      const std::size_t size = 1 + random() % 20;
      for (std::size_t i = 0; i < size; ++i) values.push_back(static_cast<std::int64_t>(first + stride * i));
    }
    const StoredRuns stored(values);
    CHECK(stored.content.size() / 3 <= 2 * pieces);
    Values rows, read(values.size());
    for (std::size_t row = 0; row < values.size(); ++row) {
      CHECK(stored.column.at(static_cast<std::int64_t>(row)) == values[row]);
      rows.push_back(static_cast<std::int64_t>(row));
    }
    stored.column.read(rows.data(), rows.size(), read.data());
    CHECK(read == values);
  }
}

TEST_CASE("the search for runs ends when there are too many") {
  const Values values{1, 2, 3, 10, 11, 12, 50};
  CHECK(modyn::find_runs(values.data(), values.size(), 3).starts == Values{0, 3, 6});
  CHECK(modyn::find_runs(values.data(), values.size(), 2).starts.empty());
  CHECK(modyn::find_runs(values.data(), 0, 2).starts.empty());
  const Values extremes{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  CHECK(StoredRuns(extremes).column.at(1) == extremes[1]);
}

TEST_CASE("runs that make no sense are read within their memory") {
  const Values content{99, -5, 12, 1, 2, 3, 4, 5, 6};  // starts that begin late and do not ascend
  const modyn::Column column = modyn::Column::runs(content.data(), 3);
  for (std::int64_t row = 0; row < 20; ++row) column.at(row);
}

TEST_CASE("values of a column are 1, 2, 4 or 8 bytes wide") {
  const std::int16_t values[] = {-300, 200};
  CHECK(modyn::Column::plain(reinterpret_cast<const std::uint8_t*>(values), 2).at(0) == -300);
  CHECK_THROWS_AS(modyn::Column::plain(nullptr, 3), modyn::InvalidArgument);
}

TEST_CASE("slots are found whatever lies between them") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  for (const Values& starts : {Values{5}, Values{0, 10, 20, 30, 40}, Values{0, 1, 2, 3, 1000, 1001, 1'000'000}, Values{least, -1, 0, 1, most}}) {
    const modyn::Slots slots(starts);
    for (std::size_t slot = 0; slot < starts.size(); ++slot) {
      CHECK(slots.find(starts[slot]) == slot);
      if (slot > 0) CHECK(slots.find(starts[slot] - 1) == slot - 1);
    }
    CHECK(slots.find(most) == starts.size() - 1);
  }
}

TEST_CASE("keys are looked up in the order asked, unknown ones are noticed") {
  Values values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i * i);
  const auto column = modyn::Column::plain(reinterpret_cast<const std::uint8_t*>(values.data()), 8);
  const modyn::SampleIndex index({segment(0, 600, column), segment(600, 601, column), segment(1000, 2000, column)});
  CHECK(index.common_length() == 7);
  std::mt19937_64 random(1);
  Values keys, expected;
  for (int i = 0; i < 5000; ++i) {
    const auto key = static_cast<std::int64_t>(random() % 1600);
    keys.push_back(key < 600 ? key : key + 400);
    expected.push_back(values[static_cast<std::size_t>(key < 600 ? key : key - 600)]);
  }
  Values offsets(keys.size());
  modyn::Answers answers;
  answers.offsets = offsets.data();
  CHECK(index.look_up(keys.data(), keys.size(), answers));
  CHECK(offsets == expected);
  for (const std::int64_t wrong : {-1, 601, 999, 2000}) {
    CHECK(!index.look_up(&wrong, 1, answers));
    keys[4000] = wrong;
    CHECK(!index.look_up(keys.data(), keys.size(), answers));
    bool found = true;
    index.contains(&wrong, 1, &found);
    CHECK(!found);
  }
}

TEST_CASE("an index of nothing, of one segment twice, and of different lengths") {
  const std::int64_t key = 0;
  CHECK(!modyn::SampleIndex({}).look_up(&key, 1, {}));
  CHECK(modyn::SampleIndex({}).look_up(&key, 0, {}));
  const auto column = modyn::Column::constant(3);
  CHECK_THROWS_AS(modyn::SampleIndex({segment(0, 10, column), segment(9, 20, column)}), modyn::InvalidArgument);
  CHECK_THROWS_AS(modyn::SampleIndex({segment(5, 5, column)}), modyn::InvalidArgument);
  CHECK(!modyn::SampleIndex({segment(0, 10, column, 1), segment(10, 20, column, 2)}).common_length());
}
