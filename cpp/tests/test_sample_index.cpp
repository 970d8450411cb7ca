#include <algorithm>
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

TEST_CASE("slots are found for any distances between them") {
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

TEST_CASE("places hold what the columns of their segments hold, and are left out where these are no runs") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    std::vector<StoredRuns> stored;
    std::vector<Values> file_ids, offsets;
    std::vector<modyn::SegmentView> segments;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    std::int64_t key = 0;
    stored.reserve(20);
    for (std::size_t number = 0; number < 1 + random() % 5; ++number) {
      key += static_cast<std::int64_t>(random() % 3) * 10;
      const auto rows = static_cast<std::int64_t>(1 + random() % 400);
      Values files, places;
      for (std::int64_t row = 0; row < rows;) {
        const std::uint64_t file = random() % 1000, stride = random() % 2, offset = random() % 100'000;
        for (const std::int64_t end = std::min<std::int64_t>(rows, row + 1 + static_cast<std::int64_t>(random() % 90)); row < end; ++row) {
          files.push_back(static_cast<std::int64_t>(file + stride * static_cast<std::uint64_t>(row)));
          places.push_back(static_cast<std::int64_t>(offset + 160 * static_cast<std::uint64_t>(row)));
        }
      }
      stored.emplace_back(files);
      const modyn::Column file_column = stored.back().column;
      stored.emplace_back(places);
      segments.push_back({key, key + rows, file_column, stored.back().column, modyn::Column::constant(160), stored.back().column, file_column});
      ranges.emplace_back(key, key + rows);
      file_ids.push_back(files);
      offsets.push_back(places);
      key += rows;
    }
    REQUIRE(!modyn::find_places(segments).empty());
    const modyn::SampleIndex index(segments);
    Values keys;
    std::vector<std::uint32_t> expected_files;
    Values expected_offsets;
    for (int i = 0; i < 1000; ++i) {
      const std::size_t number = random() % segments.size();
      const auto [first, end] = ranges[number];
      const std::size_t row = random() % static_cast<std::uint64_t>(end - first);
      keys.push_back(first + static_cast<std::int64_t>(row));
      expected_files.push_back(static_cast<std::uint32_t>(file_ids[number][row]));
      expected_offsets.push_back(offsets[number][row]);
    }
    std::vector<std::uint32_t> found_files(keys.size());
    Values found_offsets(keys.size()), found_labels(keys.size());
    modyn::Answers answers;
    answers.file_ids = found_files.data();
    answers.offsets = found_offsets.data();
    answers.labels = found_labels.data();
    REQUIRE(index.look_up(keys.data(), keys.size(), answers));
    CHECK(found_files == expected_files);
    CHECK(found_offsets == expected_offsets);
    CHECK(found_labels == expected_offsets);
    for (std::int64_t wrong = -1; wrong <= key; ++wrong) {
      const bool exists = std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) { return range.first <= wrong && wrong < range.second; });
      keys[700] = wrong;
      CHECK(index.look_up(keys.data(), keys.size(), answers) == exists);
    }
  }
  const Values values{3, 1, 2}, damaged{0, 5, 2, 1, 2, 3, 4, 5, 6}, late{1, 2, 1, 1, 1, 1};
  const modyn::Column constant = modyn::Column::constant(0);
  for (const modyn::Column& column : {modyn::Column::plain(reinterpret_cast<const std::uint8_t*>(values.data()), 8),
                                      modyn::Column::runs(damaged.data(), 3), modyn::Column::runs(late.data(), 2)}) {
    CHECK(modyn::find_places({{0, 3, constant, column, constant, constant, constant}}).empty());
    CHECK(modyn::find_places({{0, 3, column, constant, constant, constant, constant}}).empty());
  }
}
