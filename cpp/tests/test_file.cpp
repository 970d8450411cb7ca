#include <cerrno>
#include <filesystem>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/file.hpp"
#include "modyn/mapping.hpp"
#include "temporary_folder.hpp"

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
  CHECK(content(*first) == "A");  // still readable by whoever holds it
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
}

TEST_CASE("what is no regular file is refused") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(modyn::File(folder.at(".")), modyn::FileError);
  CHECK_THROWS_AS(modyn::File("/dev/null"), modyn::FileError);
}

TEST_CASE("maps") {
  const TemporaryFolder folder;
  const modyn::Mapping mapping(folder.write("a", "abc"));
  REQUIRE(mapping.size() == 3);
  CHECK(mapping.data()[2] == 'c');
  CHECK(modyn::Mapping(folder.write("empty", "")).size() == 0);
  CHECK_THROWS_AS(modyn::Mapping(folder.at("none")), modyn::FileError);
}

TEST_CASE("system errors are told apart") {
  CHECK(modyn::file_error(ENOENT, "a", 1, 2).fault == modyn::FileFault::vanished);
  CHECK(modyn::file_error(EACCES, "a", 1, 2).fault == modyn::FileFault::permission);
  CHECK(modyn::file_error(EIO, "a", 1, 2).fault == modyn::FileFault::unreadable);
  CHECK(std::string(modyn::file_error(EIO, "a", 1, 2).what()).find("a (2 bytes wanted at byte 1)") != std::string::npos);
}
