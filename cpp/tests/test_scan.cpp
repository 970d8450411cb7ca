#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/scan.hpp"
#include "testing.hpp"

namespace {

constexpr std::size_t all = 1 << 20;
const modyn::KnownFiles none;

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
  modyn::FolderScan scan(folder.at(""), ".x", "", 2, none);
  scan.enter("");
  CHECK(scan.take_links() == std::vector<std::string>{"link"});
  scan.enter("link");  // leads to a folder that was already entered
  scan.enter("none");
  CHECK(scan.take_refused().empty());
  CHECK(paths_of(scan.take_files(all)) == std::vector<std::string>{"a.x", "sub/deeper/c.x"});
  CHECK(scan.take_files(all).empty());
}

TEST_CASE("links come sorted, regardless of the order in which they are listed") {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 50; ++i) names.push_back("link" + std::to_string(i * 7919 % 1000));
  for (const auto& name : names) std::filesystem::create_symlink(folder.at("target"), folder.at(name));
  modyn::FolderScan scan(folder.at(""), ".x", "", 1, none);
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
  modyn::FolderScan scan(folder.at(""), ".x", ".label", 4, none);
  scan.enter("");
  const auto files = scan.take_files(all);
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

TEST_CASE("known files that are as they were are not handed out, and those that went are") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.at("sub"));
  for (const char* name : {"a.x", "b.x", "sub/c.x", "sub/new.x"}) {
    const timespec times[] = {{7, 0}, {7, 0}};
    REQUIRE(::utimensat(AT_FDCWD, folder.write(name, "12").c_str(), times, 0) == 0);
  }
  modyn::KnownFiles known;
  for (const char* name : {"a.x", "sub/c.x", "gone.x"}) known.append(name, 2, 7'000'000'000, false);
  known.append("b.x", 2, 7'000'000'000, true);
  modyn::FolderScan scan(folder.at(""), ".x", "", 2, known);
  scan.enter("");
  CHECK(paths_of(scan.take_files(all)) == std::vector<std::string>{"b.x", "sub/new.x"});
  CHECK(scan.absent(true) == std::vector<std::int64_t>{2});
  known.change(0, 3, 7'000'000'000, false);
  modyn::FolderScan some(folder.at(""), ".x", "", 2, known);
  some.look_at({"a.x", "gone.x", "sub/c.x", "nothing.x"});
  CHECK(some.absent(false) == std::vector<std::int64_t>{2});
  CHECK(paths_of(some.take_files(all)) == std::vector<std::string>{"a.x"});
}

TEST_CASE("known files are found by path, among many and of equal paths the newest") {
  modyn::KnownFiles known;
  CHECK(known.find("1") == modyn::KnownFiles::unknown);
  for (int i = 0; i < 5000; ++i) known.append("folder/" + std::to_string(i), i, 2 * i, i % 2 == 1);
  known.append("folder/17", 0, 0, false);
  for (int i = 0; i < 5000; ++i) CHECK(known.find("folder/" + std::to_string(i)) == (i == 17 ? 5000 : i));
  CHECK(known.find("folder/5000") == modyn::KnownFiles::unknown);
  CHECK(known.path(4711) == "folder/4711");
  CHECK(known.is_as_indexed(4710, 4710, 9420));
  CHECK(!known.is_as_indexed(4711, 4711, 9422));  // altered
  CHECK(known.any_below("folder"));
  CHECK(!known.any_below("fold"));
}

TEST_CASE("a watch names what changed, and ends where it cannot know") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.at("sub"));
  folder.write("sub/a.x", "1");
  modyn::FolderWatch watch;
  modyn::FolderScan scan(folder.at(""), ".x", "", 2, none, &watch);
  scan.enter("");
  if (!watch.holds()) return;  // the temporary folder lies on a file system that others may write to
  CHECK(watch.take() == std::vector<std::string>{});
  folder.write("sub/a.x", "12");
  folder.write("b.x", "1");
  std::filesystem::create_directories(folder.at("more"));
  CHECK(watch.take() == std::vector<std::string>{"b.x", "more", "sub/a.x"});
  modyn::FolderScan again(folder.at(""), ".x", "", 2, none, &watch);
  again.look_at({"more"});
  folder.write("more/c.x", "1");
  CHECK(watch.take() == std::vector<std::string>{"more/c.x"});
  modyn::FolderScan touched(folder.at(""), ".x", "", 2, none, &watch);
  touched.look_at({"b.x", "more", "more/c.x", "sub", "sub/a.x"});  // files in a folder of the list are found twice
  CHECK(paths_of(touched.take_files(all)) == std::vector<std::string>{"b.x", "more/c.x", "sub/a.x"});
  std::filesystem::remove_all(folder.at("sub"));
  CHECK(!watch.take().has_value());
  CHECK(!watch.holds());
}

TEST_CASE("a watch ends where its folder cannot be read") {
  const TemporaryFolder folder;
  modyn::FolderWatch watch;
  modyn::FolderScan(folder.at("absent"), ".x", "", 2, none, &watch).enter("");
  CHECK(!watch.holds());
}

TEST_CASE("a watch ends at a file that has another name") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.at("sub"));
  std::filesystem::create_directories(folder.at("elsewhere"));
  folder.write("elsewhere/a.x", "1");
  const auto watched = [&](modyn::FolderWatch& watch) {
    modyn::FolderScan(folder.at("sub"), ".x", "", 2, none, &watch).enter("");
    return watch.holds();
  };
  modyn::FolderWatch watch;
  if (!watched(watch)) return;  // the temporary folder lies on a file system that others may write to
  std::filesystem::create_hard_link(folder.at("elsewhere/a.x"), folder.at("sub/a.y"));
  CHECK(watched(watch));  // the file has another ending
  modyn::FolderScan(folder.at("sub"), ".x", "", 2, none, &watch).look_at({"a.y"});
  CHECK(!watch.holds());  // the file may be another name of a collected file
  std::filesystem::rename(folder.at("sub/a.y"), folder.at("sub/a.x"));
  modyn::FolderWatch other;
  CHECK(!watched(other));
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
