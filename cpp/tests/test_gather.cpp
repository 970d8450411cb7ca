#include <cstring>
#include <filesystem>
#include <random>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/gather.hpp"
#include "temporary_folder.hpp"

namespace {

struct Records {
  std::vector<std::string> paths;
  std::vector<std::uint32_t> files;
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> lengths;

  void add(std::uint32_t file, std::int64_t offset, std::int64_t length) {
    files.push_back(file);
    offsets.push_back(offset);
    lengths.push_back(length);
  }

  std::string gather(std::size_t threads) const {
    modyn::FileCache cache(3);
    const modyn::GatherRequest request{paths, files.data(), offsets.data(), lengths.data(), 0, files.size()};
    std::vector<std::int64_t> bounds(files.size() + 1);
    modyn::gather_bounds(request, bounds.data());
    std::string data(static_cast<std::size_t>(bounds.back()), '?');
    modyn::gather(request, bounds.data(), reinterpret_cast<std::uint8_t*>(data.data()), cache, threads);
    return data;
  }
};

std::string random_bytes(std::mt19937& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (auto& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

modyn::FileError failure(const Records& records, std::size_t threads = 1) {
  try {
    records.gather(threads);
  } catch (const modyn::FileError& error) {
    return error;
  }
  FAIL("nothing was thrown");
  throw std::logic_error("not reached");
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
  Records records{{folder.write("large", content)}, {}, {}, {}};
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

TEST_CASE("errors name file, offset and sizes") {
  const TemporaryFolder folder;
  Records records{{folder.write("a", "0123456789"), folder.at("gone")}, {}, {}, {}};
  records.add(0, 0, 4);
  records.add(0, 8, 4);
  const auto truncated = failure(records);
  CHECK(truncated.fault == modyn::FileFault::truncated);
  CHECK(truncated.path == records.paths[0]);
  CHECK(truncated.offset == 8);
  CHECK(truncated.wanted == 4);
  CHECK(truncated.available == 2);

  Records vanished{records.paths, {}, {}, {}};
  for (int i = 0; i < 1000; ++i) vanished.add(i % 500 == 499 ? 1 : 0, i % 7, 2);
  const auto error = failure(vanished, 4);
  CHECK(error.fault == modyn::FileFault::vanished);
  CHECK(error.path == folder.at("gone"));
  CHECK(error.wanted == 2);
}

TEST_CASE("records that cannot exist are the caller's mistake") {
  Records records{{"a"}, {}, {}, {}};
  records.add(0, -1, 1);
  CHECK_THROWS_AS(records.gather(1), modyn::InvalidArgument);
  records = {{"a"}, {1}, {0}, {1}};
  CHECK_THROWS_AS(records.gather(1), modyn::InvalidArgument);
  records = {{"a"}, {0}, {std::numeric_limits<std::int64_t>::max()}, {1}};
  CHECK_THROWS_AS(records.gather(1), modyn::InvalidArgument);
  records = {{"a"}, {}, {}, {}};
  CHECK(records.gather(1).empty());
}
