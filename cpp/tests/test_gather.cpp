#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/gather.hpp"
#include "testing.hpp"

namespace {

std::string random_bytes(std::mt19937& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (auto& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

modyn::FileError failure(const Records& records, std::size_t threads, modyn::FileCache& cache) {
  return thrown_by<modyn::FileError>([&] { records.gather(threads, cache); });
}

constexpr std::int64_t row = 160;

// Rows of one file. Each byte of a row is the row's number, which identifies the row and shows whether it is complete.
std::string numbered_rows(std::size_t count) {
  std::string content;
  for (std::size_t i = 0; i < count; ++i) content.append(row, static_cast<char>(i % 251));
  return content;
}

Records shuffled_rows(const std::string& path, std::size_t in_file, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Records records{{path}};
  for (std::size_t i = 0; i < count; ++i) records.add(0, static_cast<std::int64_t>(random() % in_file) * row, row);
  return records;
}

std::string expected_rows(const Records& records) {
  std::string expected;
  for (const auto offset : records.offsets) expected.append(row, static_cast<char>(offset / row % 251));
  return expected;
}

std::string take(const std::string& data, const std::vector<std::int64_t>& bounds, const std::vector<std::int64_t>& rows, std::size_t threads) {
  const modyn::TakeRequest request{reinterpret_cast<const std::uint8_t*>(data.data()), static_cast<std::int64_t>(data.size()), bounds.data(), 0,
                                   static_cast<std::int64_t>(bounds.size()) - 1, rows.data(), rows.size()};
  std::vector<std::int64_t> taken_bounds(rows.size() + 1);
  modyn::take_bounds(request, taken_bounds.data());
  std::string taken(static_cast<std::size_t>(taken_bounds.back()), '?');
  modyn::take(request, taken_bounds.data(), reinterpret_cast<std::uint8_t*>(taken.data()), threads);
  return taken;
}

}  // namespace

TEST_CASE("records come in the order asked, on any number of threads") {
  const TemporaryFolder folder;
  std::mt19937 random(7);
  Records records;
  std::vector<std::string> contents;
  for (int i = 0; i < 5; ++i) {
    contents.push_back(random_bytes(random, 200'000));
    records.paths.push_back(folder.write(std::to_string(i), contents.back()));
  }
  std::string expected;
  for (int i = 0; i < 20'000; ++i) {
    const auto file = static_cast<std::uint32_t>(random() % 5);
    const auto length = static_cast<std::int64_t>(random() % 100 == 0 ? random() % 50'000 : random() % 200);
    const auto offset = static_cast<std::int64_t>(random() % (200'000 - static_cast<std::size_t>(length)));
    records.add(file, offset, length);
    expected += contents[file].substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(length));
  }
  for (const std::size_t threads : {1, 2, 8}) CHECK(records.gather(threads) == expected);
}

TEST_CASE("a run longer than the scratch space, sequential and with duplicates") {
  const TemporaryFolder folder;
  std::mt19937 random(1);
  const std::string content = random_bytes(random, 5U << 20);
  Records records{{folder.write("large", content)}};
  std::string expected;
  for (std::int64_t offset = 0; offset < (5 << 20); offset += 1 << 10) records.add(0, offset, 1 << 10);
  records.add(0, 0, 5 << 20);
  records.add(0, 17, 3 << 20);
  CHECK(records.gather(2) == content + content + content.substr(17, 3U << 20));
}

TEST_CASE("offsets too large to pack are still sorted") {
  const TemporaryFolder folder;
  const auto path = folder.write("sparse", "ab");
  const std::int64_t far = std::int64_t{1} << 43;
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(far));
  Records records;
  records.paths.assign(1U << 20, path);
  records.add((1U << 20) - 1, far - 1, 1);
  records.add(0, 1, 1);
  records.add(1U << 19, 0, 1);
  CHECK(records.gather(1) == std::string("\0ba", 3));
}

TEST_CASE("a file that is not as it was when it was indexed is never read") {
  const TemporaryFolder folder;
  // Set a past time, because two writes within one tick of the clock would set the same time.
  const auto rename_over = [&](const std::string& path) {
    const auto other = folder.write("other", numbered_rows(1000));
    std::filesystem::last_write_time(other, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    std::filesystem::rename(other, path);
  };
  for (const std::size_t count : {std::size_t{3}, std::size_t{5000}}) {  // by reading, and from a map
    for (const bool may_grow : {false, true}) {
      CAPTURE(count);
      CAPTURE(may_grow);
      Records records = shuffled_rows(folder.write("a", numbered_rows(1000)), 1000, count, 3);
      records.may_grow = may_grow;
      const auto& path = records.paths[0];
      const std::string content = expected_rows(records);
      modyn::FileCache cache(3);
      records.stamps = {modyn::File(path).stamp()};
      CHECK(records.gather(2, cache) == content);

      rename_over(path);
      const auto replaced = failure(records, 2, cache);
      CHECK(replaced.fault == modyn::FileFault::changed);
      CHECK(replaced.path == path);
      CHECK(replaced.wanted == row);
      records.stamps = {modyn::File(path).stamp()};
      CHECK(records.gather(2, cache) == content);

      std::fstream(path, std::ios::in | std::ios::out) << "in place";
      CHECK(failure(records, 2, cache).fault == modyn::FileFault::changed);

      rename_over(path);
      records.stamps = {modyn::File(path).stamp()};
      std::ofstream(path, std::ios::app) << "more";
      if (may_grow) {
        CHECK(records.gather(2, cache) == content);
      } else {
        CHECK(failure(records, 2, cache).fault == modyn::FileFault::changed);
      }
      std::filesystem::resize_file(path, 0);
      CHECK(failure(records, 2, cache).fault == modyn::FileFault::truncated);
    }
  }
}

TEST_CASE("files with few records among files with many, of which one is gone") {
  const TemporaryFolder folder;
  Records records = shuffled_rows(folder.write("many", numbered_rows(1000)), 1000, 5000, 3);
  const std::string expected = expected_rows(records);
  modyn::FileCache cache(3);
  records.paths.push_back(folder.write("few", "0123456789"));
  records.paths.push_back(folder.at("gone"));
  records.add(1, 3, 4);
  records.add(1, 9, 1);
  records.add(1, 10, 0);
  CHECK(records.gather(2, cache) == expected + "34569");
  for (int i = 0; i < 10; ++i) records.add(2, i, 7);
  const auto error = failure(records, 4, cache);
  CHECK(error.fault == modyn::FileFault::vanished);
  CHECK(error.path == folder.at("gone"));
  CHECK(error.wanted == 7);
}

TEST_CASE("ids of any size, many of them") {
  const TemporaryFolder folder;
  constexpr std::uint32_t files = 300;
  constexpr std::uint32_t apart = 14'000'000;
  const std::string content = numbered_rows(files);
  // One text for all: a file's path is that of its block.
  const std::string path = folder.write("rows", content);
  modyn::PathTable table("");
  std::vector<std::int64_t> ends(apart, static_cast<std::int64_t>(path.size()));
  ends[0] = 0;
  Records records;
  std::string expected;
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    const auto file = random() % files;
    records.add(file * (apart / files) + 1, file * row, row);
    expected.append(row, static_cast<char>(file % 251));
  }
  for (std::uint32_t file = 0; file < files; ++file) ends[file * (apart / files)] = 0;
  table.append_packed({reinterpret_cast<const std::uint8_t*>(path.data()), path.size(), ends.data(), ends.size(), nullptr});
  modyn::FileCache cache(3);
  CHECK(gathered({table, records.files.data(), records.offsets.data(), nullptr, row, records.files.size()}, cache, 2) == expected);
}

TEST_CASE("a mapped file that grows, is replaced, or is cut between two calls") {
  const TemporaryFolder folder;
  modyn::FileCache cache(3);
  const auto path = folder.write("rows", numbered_rows(500));
  const Records small = shuffled_rows(path, 500, 2000, 1);
  CHECK(small.gather(1, cache) == expected_rows(small));

  std::ofstream(path, std::ios::binary | std::ios::app) << numbered_rows(1000).substr(500 * row);
  const Records grown = shuffled_rows(path, 1000, 2000, 2);
  CHECK(grown.gather(1, cache) == expected_rows(grown));

  std::filesystem::rename(folder.write("new", std::string(1000 * row, 'n')), path);
  CHECK(grown.gather(1, cache) == std::string(2000 * row, 'n'));

  // The file is truncated within a page, so that no fault occurs: the rest of the page reads as zeros.
  std::filesystem::resize_file(path, 999 * row + 1);
  CHECK(small.gather(1, cache) == std::string(2000 * row, 'n'));
  Records last = small;
  last.add(0, 999 * row, row);
  const auto error = failure(last, 2, cache);
  CHECK(error.fault == modyn::FileFault::truncated);
  CHECK(error.offset == 999 * row);
  CHECK(error.available == 1);

  std::filesystem::resize_file(path, 0);
  CHECK(failure(small, 2, cache).fault == modyn::FileFault::truncated);
  CHECK(failure(small, 1, cache).available == 0);
}

TEST_CASE("a writer that is kept from going on between the time of a file and its size") {
  const TemporaryFolder folder;
  Records records{{folder.write("log", numbered_rows(10))}};
  records.add(0, row, row);
  records.may_grow = true;
  const auto there = modyn::File(records.paths[0]).stamp();
  records.stamps = {{there.size, there.mtime_ns - 1}};  // as if the write had set the time, but not yet the size
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::ofstream(records.paths[0], std::ios::app) << "more";
  });
  CHECK(records.gather(1) == std::string(row, 1));
  writer.join();
}

TEST_CASE("a file that is cut while threads copy from its map") {
  const TemporaryFolder folder;
  constexpr std::size_t rows = 20'000;
  const std::string content = numbered_rows(rows);
  const auto path = folder.write("rows", content);
  modyn::FileCache cache(3);
  std::atomic<bool> done{false};
  std::thread cutter([&] {
    while (!done) {
      std::filesystem::resize_file(path, rows / 2 * row + 7);
      std::filesystem::resize_file(path, rows * row);
      std::ofstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      file << content;
    }
  });
  // For each row, the written bytes or those after the cut.
  const auto are_rows = [](const std::string& data, const Records& records) {
    const std::string expected = expected_rows(records);
    return data.size() == expected.size() &&
           std::equal(data.begin(), data.end(), expected.begin(), [](char got, char written) { return got == written || got == 0; });
  };
  std::atomic<int> turns{0};
  std::atomic<int> whole{0};
  std::atomic<int> cut{0};
  std::vector<std::thread> readers;
  for (unsigned seed = 0; seed < 4; ++seed) {
    readers.emplace_back([&, seed] {
      const Records records = shuffled_rows(path, rows, 4000, seed);
      for (int turn = 0; turn < 100 || (cut == 0 && turn < 10'000); ++turn) {
        ++turns;
        try {
          whole += are_rows(records.gather(2, cache), records);
        } catch (const modyn::FileError& error) {
          cut += error.fault == modyn::FileFault::truncated && error.path == path;
        }
      }
    });
  }
  for (auto& reader : readers) reader.join();
  done = true;
  cutter.join();
  CHECK(cut > 0);
  CHECK(whole + cut == turns);
}

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
}

TEST_CASE("rows and bounds that cannot be are refused, where they are asked for") {
  using Numbers = std::vector<std::int64_t>;
  CHECK_THROWS_AS(take("aabb", {0, 2, 4}, {2}, 1), modyn::InvalidArgument);
  CHECK_THROWS_AS(take("aabb", {0, 2, 4}, {-1}, 1), modyn::InvalidArgument);
  for (const Numbers& bounds : {Numbers{0, 2, 5}, Numbers{0, 3, 2}, Numbers{0, -1, 3}}) {
    CHECK_THROWS_AS(take("aabb", bounds, {1}, 1), modyn::InvalidArgument);
  }
  CHECK(take("aabb", {0, 2, 5}, {0}, 1) == "aa");
}
