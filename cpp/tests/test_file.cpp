#include <cerrno>
#include <filesystem>
#include <limits>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/file.hpp"
#include "testing.hpp"

namespace {

std::string content(const modyn::File& file) {
  std::string text(64, '\0');
  text.resize(file.read_some(text.data(), text.size(), 0));
  return text;
}

}  // namespace

TEST_CASE("the cache keeps as many files as it may, the latest ones") {
  const TemporaryFolder folder;
  modyn::FileCache cache(2);
  const auto a = folder.write("a", "A");
  const auto b = folder.write("b", "B");
  const auto c = folder.write("c", "C");
  const auto first = cache.open(a);
  CHECK(cache.open(a) == first);
  cache.open(b);
  cache.open(c);
  CHECK(cache.size() == 2);
  CHECK(cache.open(a) != first);
  CHECK(content(*first) == "A");  // still readable through the handle
  cache.clear();
  CHECK(cache.size() == 0);
}

TEST_CASE("a file that was replaced or removed is noticed") {
  const TemporaryFolder folder;
  modyn::FileCache cache(8);
  const auto path = folder.write("a", "old");
  CHECK(content(*cache.open(path)) == "old");
  std::filesystem::rename(folder.write("b", "new"), path);
  CHECK(content(*cache.open(path)) == "new");
  std::filesystem::remove(path);
  CHECK_THROWS_AS(cache.open(path), modyn::FileError);
  CHECK(cache.size() == 0);
}

TEST_CASE("a file that was written is opened again, with a map of its new content") {
  const TemporaryFolder folder;
  modyn::FileCache cache(8);
  const auto path = folder.write("a", "old");
  const auto file = cache.open(path);
  CHECK(std::string(reinterpret_cast<const char*>(file->map(3).get()), 3) == "old");
  std::ofstream(path, std::ios::app) << " and new";
  CHECK(file->map(4) == nullptr);
  const auto grown = cache.open(path);
  CHECK(grown != file);
  CHECK(std::string(reinterpret_cast<const char*>(grown->map(4).get()), 11) == "old and new");
  CHECK(cache.open(path) == grown);
  CHECK(cache.size() == 1);
}

TEST_CASE("files without a name are kept no longer") {
  const TemporaryFolder folder;
  modyn::FileCache cache(8);
  for (const char* name : {"stays", "removed", "replaced"}) cache.open(folder.write(name, name));
  CHECK(cache.forget_removed() == 0);
  std::filesystem::remove(folder.at("removed"));
  std::filesystem::rename(folder.write("new", "new"), folder.at("replaced"));
  CHECK(cache.forget_removed() == 2);
  CHECK(cache.size() == 1);
}

TEST_CASE("times beyond the years of int64 nanoseconds") {
  CHECK(modyn::nanoseconds({1, 5}) == 1'000'000'005);
  CHECK(modyn::nanoseconds({-1, 5}) == -999'999'995);
  CHECK(modyn::nanoseconds({10'000'000'000, 5}) == std::numeric_limits<std::int64_t>::max());
  CHECK(modyn::nanoseconds({-10'000'000'000, 5}) == -std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("what is no regular file is refused") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(modyn::File(folder.at(".")), modyn::FileError);
  CHECK_THROWS_AS(modyn::File("/dev/null"), modyn::FileError);
}

TEST_CASE("a map outlives its file's descriptor, and an empty file has none") {
  const TemporaryFolder folder;
  const auto map = modyn::File(folder.write("a", "abc")).map(3);
  CHECK(map.get()[2] == 'c');
  CHECK(modyn::File(folder.write("empty", "")).map(0) == nullptr);
}

TEST_CASE("system errors are distinguished") {
  CHECK(modyn::file_error(ENOENT, "a", 1, 2).fault == modyn::FileFault::vanished);
  CHECK(modyn::file_error(EACCES, "a", 1, 2).fault == modyn::FileFault::permission);
  CHECK(modyn::file_error(EIO, "a", 1, 2).fault == modyn::FileFault::unreadable);
  CHECK(std::string(modyn::file_error(EIO, "a", 1, 2).what()).find("a (2 bytes wanted at byte 1)") != std::string::npos);
}
