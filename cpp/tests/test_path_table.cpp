#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/path_table.hpp"

TEST_CASE("ids count on over blocks of either kind") {
  modyn::PathTable table("/base");
  CHECK(table.size() == 0);
  table.append({"a", "sub/b"});
  auto text = std::make_shared<const std::string>("cdd/elsewhere");
  auto ends = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{1, 3, 13});
  table.append_packed({reinterpret_cast<const std::uint8_t*>(text->data()), text->size(), ends->data(), ends->size(),
                       std::make_shared<std::pair<decltype(text), decltype(ends)>>(text, ends)});
  table.append({"f"});
  const std::vector<std::string> expected{"/base/a", "/base/sub/b", "/base/c", "/base/dd", "/elsewhere", "/base/f"};
  REQUIRE(table.size() == expected.size());
  for (std::size_t id = 0; id < expected.size(); ++id) CHECK(table.file(id).path == expected[id]);
  CHECK_THROWS_AS(table.file(expected.size()), std::out_of_range);
  CHECK(text.use_count() == 2);  // held, not copied
}

TEST_CASE("stamps, and others in place of them") {
  modyn::PathTable table("/base", true);
  const std::vector<std::int64_t> ends{1, 2}, old_sizes{10, 20}, old_times{1, 2};
  table.append({"a", "b"});
  table.append_packed({reinterpret_cast<const std::uint8_t*>("cd"), 2, ends.data(), 2, nullptr, old_sizes.data(), old_times.data()});
  CHECK(!table.file(1).stamp);
  CHECK(table.file(1).may_be({5, 5}));
  CHECK(table.file(3).path == "/base/d");
  CHECK(*table.file(3).stamp == modyn::FileStamp{20, 2});
  CHECK(table.file(3).may_be({20, 2}));
  CHECK(table.file(3).may_be({21, 2}));
  CHECK(!table.file(3).may_be({20, 3}));
  CHECK(!table.file(3).may_be({19, 2}));
  const std::vector<std::int64_t> ids{0, 3}, sizes{7, 21}, times{8, 9};
  table.restamp({ids.data(), sizes.data(), times.data(), 2, nullptr});
  CHECK(*table.file(0).stamp == modyn::FileStamp{7, 8});
  CHECK(*table.file(2).stamp == modyn::FileStamp{10, 1});
  CHECK(*table.file(3).stamp == modyn::FileStamp{21, 9});
  table.restamp({});
  CHECK(*table.file(3).stamp == modyn::FileStamp{20, 2});
  CHECK(!modyn::IndexedFile{"a", modyn::FileStamp{1, 1}}.may_be({2, 1}));
}

TEST_CASE("ids end where 32 bits do") {
  modyn::PathTable table("");
  table.append_packed({nullptr, 0, nullptr, (std::size_t{1} << 32) - 1, nullptr});  // not looked at
  table.append({"last"});
  CHECK(table.file(0xffffffff).path == "last");
  CHECK_THROWS_AS(table.append({"one more"}), modyn::InvalidArgument);
}

TEST_CASE("damaged ends are found when their path is asked for") {
  const std::string text = "abc";
  const std::vector<std::int64_t> ends{1, 4, 2, -1};
  modyn::PathTable table("/");
  table.append_packed({reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), ends.data(), ends.size(), nullptr});
  CHECK(table.file(0).path == "/a");
  for (std::size_t id = 1; id < 4; ++id) CHECK_THROWS_AS(table.file(id), modyn::InvalidArgument);
}

TEST_CASE("a table grows while others read it") {
  modyn::PathTable table("/b/");
  table.append({"0"});
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    while (!done) {
      const std::size_t last = table.size() - 1;
      wrong += table.file(last).path != "/b/" + std::to_string(last);
    }
  });
  for (int i = 1; i < 2000; ++i) table.append({std::to_string(i)});
  done = true;
  reader.join();
  CHECK(wrong == 0);
}
