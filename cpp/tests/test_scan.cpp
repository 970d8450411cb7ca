#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/scan.hpp"
#include "testing.hpp"

namespace {

std::vector<std::string> paths_of(std::vector<modyn::FoundFile> files) {
  std::vector<std::string> paths;
  for (auto& file : files) paths.push_back(std::move(file.path));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

TEST_CASE("files by their ending, links handed out, each folder once") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.at("sub/deeper"));
  folder.write("a.x", "12");
  folder.write("b.y", "1");
  folder.write("sub/deeper/c.x", "");
  std::filesystem::create_symlink(folder.at("sub"), folder.at("link"));
  ::mkfifo(folder.at("pipe.x").c_str(), 0600);
  modyn::FolderScan scan(folder.at(""), ".x", "", 2);
  scan.enter("");
  CHECK(scan.take_links() == std::vector<std::string>{"link"});
  scan.enter("link");  // leads to a folder that was entered
  scan.enter("none");
  CHECK(scan.take_refused().empty());
  CHECK(paths_of(scan.take_files()) == std::vector<std::string>{"a.x", "sub/deeper/c.x"});
  CHECK(scan.take_files().empty());
}

TEST_CASE("links come sorted, in whatever order they are listed") {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 50; ++i) names.push_back("link" + std::to_string(i * 7919 % 1000));
  for (const auto& name : names) std::filesystem::create_symlink(folder.at("target"), folder.at(name));
  modyn::FolderScan scan(folder.at(""), ".x", "", 1);
  scan.enter("");
  std::sort(names.begin(), names.end());
  CHECK(scan.take_links() == names);
  CHECK(scan.take_links().empty());
}

TEST_CASE("many files with companions, in order of time and path") {
  const TemporaryFolder folder;
  for (int i = 0; i < 1500; ++i) {
    folder.write(std::to_string(i) + ".x", std::string(static_cast<std::size_t>(i % 5), 'x'));
    if (i % 3) folder.write(std::to_string(i) + ".label", "1");
    const auto path = folder.at(std::to_string(i) + ".x");
    const timespec times[] = {{i % 7, 0}, {i % 7, 5}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  }
  modyn::FolderScan scan(folder.at(""), ".x", ".label", 4);
  scan.enter("");
  const auto files = scan.take_files();
  REQUIRE(files.size() == 1500);
  for (std::size_t at = 0; at < files.size(); ++at) {
    const int i = std::stoi(files[at].path);
    CHECK(files[at].size == i % 5);
    CHECK(files[at].modification_time == (i % 7) * 1'000'000'000LL + 5);
    CHECK((files[at].changed == modyn::FolderScan::no_companion) == (i % 3 == 0));
    if (i % 3) CHECK(files[at].changed > files[at].modification_time);
    if (at > 0) {
      CHECK(std::pair(files[at - 1].modification_time, files[at - 1].path) < std::pair(files[at].modification_time, files[at].path));
    }
  }
}

TEST_CASE("sizes and labels, and problems that stay with their file") {
  const TemporaryFolder folder;
  std::vector<std::string> paths;
  std::vector<std::string> labels;
  for (int i = 0; i < 1000; ++i) {
    paths.push_back(folder.write(std::to_string(i) + ".x", std::string(static_cast<std::size_t>(i % 5), 'x')));
    labels.push_back(folder.at(std::to_string(i) + ".label"));
    if (i % 7 != 3) folder.write(std::to_string(i) + ".label", " " + std::to_string(i * 3) + "\n");
  }
  folder.write("1.label", "seven");
  const auto found = modyn::stat_and_read_numbers(paths, 2, ".label", false, {}, 4);
  auto problem = found.problems.begin();
  for (std::size_t i = 0; i < 1000; ++i) {
    const bool bad = i % 5 == 0 || i % 7 == 3 || i == 1;
    if (bad) {
      REQUIRE(problem != found.problems.end());
      CHECK(problem->position == i);
      CHECK(problem->path == (i % 5 == 0 ? paths[i] : labels[i]));
      ++problem;
    } else {
      CHECK(found.sizes[i] == static_cast<std::int64_t>(i % 5));
      CHECK(found.numbers[i] == static_cast<std::int64_t>(i * 3));
      CHECK(found.modification_times[i] > 0);
    }
  }
  CHECK(problem == found.problems.end());
}

TEST_CASE("decimal labels") {
  const TemporaryFolder folder;
  folder.write("a.label", "0.25");
  const auto found = modyn::stat_and_read_numbers({folder.write("a", "x")}, 0, ".label", true, {}, 1);
  CHECK(found.problems.empty());
  CHECK(found.numbers[0] == 0x3fd0000000000000);  // the bits of 0.25
  CHECK_THROWS_AS(modyn::stat_and_read_numbers({"a"}, 2, "", true, {}, 1), modyn::InvalidArgument);
}
