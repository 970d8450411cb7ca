#include "doctest/doctest.h"
#include "modyn/csv.hpp"
#include "modyn/errors.hpp"
#include "testing.hpp"

namespace {

using Rows = std::vector<std::pair<std::string, std::int64_t>>;

// Payload and label of each row, read in chunks of `chunk`.
Rows read(const std::string& content, modyn::CsvOptions options = {}, std::size_t chunk = 3, std::int64_t start = 0) {
  const TemporaryFolder folder;
  modyn::CsvIndexer indexer(folder.write("file.csv", content), {}, start, 0, options);
  Rows rows;
  for (;;) {
    const modyn::CsvRows found = indexer.next(chunk);
    if (found.offsets.empty() && found.bad.empty()) return rows;
    for (std::size_t i = 0; i < found.offsets.size(); ++i) {
      rows.emplace_back(content.substr(static_cast<std::size_t>(found.offsets[i]), static_cast<std::size_t>(found.lengths[i])),
                        found.labels[i]);
    }
  }
}

}  // namespace

TEST_CASE("rows, quotes and line breaks") {
  CHECK(read("1,a\n2,b\r\n\n\r\n3,c") == Rows{{"1,a", 1}, {"2,b", 2}, {"3,c", 3}});
  CHECK(read("1,\"a,\n\r\n\"\"b\"\n2,x\"y\n") == Rows{{"1,\"a,\n\r\n\"\"b\"", 1}, {"2,x\"y", 2}});
  CHECK(read("1,a\rb\n2,\r") == Rows{{"1,a\rb", 1}, {"2,", 2}});
  CHECK(read("\"1\"5,a\n") == Rows{{"\"1\"5,a", 15}});
  CHECK(read("").empty());
  CHECK(read("\n\n").empty());
}

TEST_CASE("options") {
  modyn::CsvOptions options;
  options.skip_first_line = true;
  options.label_column = 1;
  options.separator = ';';
  options.quote = '\'';
  CHECK(read("\xEF\xBB\xBF'a\nb';label\nx;'7'\n", options) == Rows{{"x;'7'", 7}});
  CHECK(read("head;er", options).empty());
  options.quote = std::nullopt;
  options.skip_first_line = false;
  CHECK(read("'x;7\n", options) == Rows{{"'x;7", 7}});
}

TEST_CASE("rows longer than the first window") {
  const std::string large(3U << 20, 'x');
  const std::string content = "1," + large + "\n2,\"" + large + "\n\"\n3,y\n";
  CHECK(read(content) == Rows{{"1," + large, 1}, {"2,\"" + large + "\n\"", 2}, {"3,y", 3}});
}

TEST_CASE("line breaks that a window cuts in two") {
  std::string content;
  Rows expected;
  for (int i = 0; content.size() < (2U << 20) + 100; ++i) {
    const std::string row = std::to_string(i) + "," + std::string(static_cast<std::size_t>(i % 13), 'z');
    content += row + "\r\n";
    expected.emplace_back(row, i);
  }
  for (const std::size_t shift : {0, 1, 2, 3}) CHECK(read(std::string(shift, '\n') + content, {}, 1000) == expected);
}

TEST_CASE("bad rows name row and byte, and are in no column") {
  const auto bad = [](const std::string& content, const modyn::CsvOptions& options = {}) {
    const TemporaryFolder folder;
    return modyn::CsvIndexer(folder.write("file.csv", content), {}, 0, 0, options).next(100).bad;
  };
  const auto bad_label = bad("1,a\n\n22,b\nx7,c\n4,d\ny");
  REQUIRE(bad_label.size() == 2);
  CHECK(bad_label[0].offset == 10);
  CHECK(bad_label[0].reason.find("row 3 at byte 10: ") != std::string::npos);
  CHECK(bad_label[0].ended);
  CHECK(!bad_label[1].ended);
  CHECK(read("1,a\n\n22,b\nx7,c\n4,d\ny") == Rows{{"1,a", 1}, {"22,b", 22}, {"4,d", 4}});
  modyn::CsvOptions second;
  second.label_column = 1;
  CHECK(bad("a,1\nb\n", second).size() == 1);
  std::string many;
  for (int i = 0; i < 3000; ++i) many += "x\n";
  CHECK(bad(many).size() == 1000);
  const auto open_quote = thrown_by<modyn::CsvError>([&] { read("1,a\n2,\"b\n3,c\n"); });
  CHECK(open_quote.row == 2);
  CHECK(open_quote.offset == 6);
}

TEST_CASE("a file that grew") {
  CHECK(read("1,a\n2,b\n", {}, 3, 4) == Rows{{"2,b", 2}});
  CHECK(read("1,a\n2,b", {}, 3, 3) == Rows{{"2,b", 2}});       // the row had no line break then
  CHECK_THROWS_AS(read("1,ab\n2,b", {}, 3, 3), modyn::CsvError);  // and was continued
  CHECK(read("1,a\n", {}, 3, 4).empty());
  CHECK_THROWS_AS(read("1,a\n", {}, 3, 9), modyn::FileError);
}
