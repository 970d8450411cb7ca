#include <filesystem>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/small_files.hpp"
#include "temporary_folder.hpp"

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
  const auto found = modyn::stat_and_read_numbers(paths, 2, ".label", false, 4);
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
      CHECK(found.int_numbers[i] == static_cast<std::int64_t>(i * 3));
      CHECK(found.modification_times[i] > 0);
    }
  }
  CHECK(problem == found.problems.end());
}

TEST_CASE("decimal labels") {
  const TemporaryFolder folder;
  folder.write("a.label", "0.25");
  const auto found = modyn::stat_and_read_numbers({folder.write("a", "x")}, 0, ".label", true, 1);
  CHECK(found.problems.empty());
  CHECK(found.float_numbers[0] == 0.25);
  CHECK_THROWS_AS(modyn::stat_and_read_numbers({"a"}, 2, "", true, 1), modyn::InvalidArgument);
}
