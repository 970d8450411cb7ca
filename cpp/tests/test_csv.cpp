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
  CHECK(read("1,a\r2,b\n3,\r") == Rows{{"1,a", 1}, {"2,b", 2}, {"3,", 3}});
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
    modyn::CsvIndexer indexer(folder.write("file.csv", content), {}, 0, 0, options);
    std::vector<modyn::BadRow> found;
    for (modyn::CsvRows rows = indexer.next(100); !rows.offsets.empty() || !rows.bad.empty(); rows = indexer.next(100)) {
      found.insert(found.end(), rows.bad.begin(), rows.bad.end());
    }
    return found;
  };
  const auto bad_label = bad("1,a\n\n22,b\nx7,c\n4,d\ny");
  REQUIRE(bad_label.size() == 2);
  CHECK(bad_label[0].offset == 10);
  CHECK(bad_label[0].reason.find("line 4, row 3 at byte 10: ") != std::string::npos);
  CHECK(bad_label[1].reason.find("line 6, row 5 at byte 19: ") != std::string::npos);
  CHECK(read("1,a\n\n22,b\nx7,c\n4,d\ny") == Rows{{"1,a", 1}, {"22,b", 22}, {"4,d", 4}});
  modyn::CsvOptions second;
  second.label_column = 1;
  CHECK(bad("a,1\nb\n", second).size() == 1);
  std::string many;
  for (int i = 0; i < 3000; ++i) many += "x\n";
  CHECK(bad(many).size() == 3000);
}

TEST_CASE("rows that a lost quote would swallow are found") {
  const auto faults = [](const std::string& content, const char* reason, const Rows& expected, std::size_t most_lines = 1000) {
    const TemporaryFolder folder;
    modyn::CsvOptions options;
    options.max_field_lines = most_lines;
    CHECK(read(content, options) == expected);
    modyn::CsvIndexer indexer(folder.write("file.csv", content), {}, 0, 0, options);
    std::string found;
    for (modyn::CsvRows rows = indexer.next(100); !rows.offsets.empty() || !rows.bad.empty(); rows = indexer.next(100)) {
      for (const auto& row : rows.bad) found += row.reason + "|";
    }
    CAPTURE(found);
    CHECK(found.find(reason) != std::string::npos);
  };
  const Rows others = {{"1,a", 1}, {"3,c", 3}, {"4,\"fine\"", 4}};
  faults("1,a\n2,\"b\n3,c\n4,\"fine\"\n", "line 2, row 2 at byte 6: text follows the closing quote", others);
  faults("1,a\r\n2,\"b\r\n3,c\r\n4,\"fine\"", "line 2, row 2 at byte 7: text follows the closing quote", others);
  faults("1,a\n2,\"b\n3,c\n4,\"fine\"\n5,\"\n", "line 5, row 5 at byte 24: the quote that opens here is never closed", others);
  faults("1,a\n2,\"b\n3,c\n4,\"fine\"\n", "more lines than max_field_lines", others, 2);
  faults("1,a\n2,\"b\n3,c\n4,\",d\"\n", "line 2, row 2 at byte 4: the row has 3 field(s)", {{"1,a", 1}, {"3,c", 3}, {"4,\",d\"", 4}});
  faults("1,a\n2,\"b\nc\"\n3,d,\n4\n", "line 4, row 3 at byte 12: the row has 3 field(s)", {{"1,a", 1}, {"2,\"b\nc\"", 2}});
}

TEST_CASE("a row that may yet be continued comes alone") {
  const auto chunks = [](const std::string& content) {
    const TemporaryFolder folder;
    modyn::CsvIndexer indexer(folder.write("file.csv", content), {}, 0, 0, {});
    std::vector<std::pair<std::size_t, bool>> found;  // rows, unended
    for (modyn::CsvRows rows = indexer.next(100); !rows.offsets.empty() || !rows.bad.empty(); rows = indexer.next(100)) {
      found.emplace_back(rows.offsets.size() + rows.bad.size(), rows.unended);
    }
    return found;
  };
  using Chunks = std::vector<std::pair<std::size_t, bool>>;
  CHECK(chunks("1,a\n2,b\n") == Chunks{{2, false}});
  CHECK(chunks("1,a\n2,b\n3,c") == Chunks{{2, false}, {1, true}});
  CHECK(chunks("1,a\nx") == Chunks{{1, false}, {1, true}});
  CHECK(chunks("1") == Chunks{{1, true}});
  CHECK(chunks("1,a\n2,\"b\n3,c\n") == Chunks{{1, false}, {1, true}, {1, false}});
  CHECK(chunks("1,a\n2,\"b\nc\"") == Chunks{{1, false}, {1, true}});
}

TEST_CASE("rows are text") {
  const auto reason = [](const std::string& content, bool utf8 = true) {
    const TemporaryFolder folder;
    modyn::CsvOptions options;
    options.utf8 = utf8;
    const auto bad = modyn::CsvIndexer(folder.write("file.csv", content), {}, 0, 0, options).next(100).bad;
    return bad.empty() ? std::string() : bad.front().reason;
  };
  using namespace std::string_literals;
  CHECK(reason("1,\xC3\xBC\xF0\x9F\x98\x80\xE2\x80\xA8\n"s).empty());
  CHECK(reason("1,\xE9t\xE9\n"s).find("line 1, row 1 at byte 2: the byte here is not UTF-8") != std::string::npos);
  CHECK(reason("1,\xED\xA0\x80\n"s).find("not UTF-8") != std::string::npos);  // a surrogate
  CHECK(reason("1,\xC0\x80\n"s).find("not UTF-8") != std::string::npos);      // not the shortest form
  CHECK(reason("1,\xC3\n"s).find("not UTF-8") != std::string::npos);
  CHECK(reason("1,\xE9t\xE9\n"s, false).empty());
  CHECK(reason("1,a\0b\n"s, false).find("byte 3: a NUL byte") != std::string::npos);
}

TEST_CASE("a file that grew") {
  CHECK(read("1,a\n2,b\n", {}, 3, 4) == Rows{{"2,b", 2}});
  CHECK(read("1,a\n2,b", {}, 3, 3) == Rows{{"2,b", 2}});       // the row had no line break when it was read
  CHECK_THROWS_AS(read("1,ab\n2,b", {}, 3, 3), modyn::CsvError);  // the row without a line break was continued
  CHECK(read("1,a\n", {}, 3, 4).empty());
  CHECK_THROWS_AS(read("1,a\n", {}, 3, 9), modyn::FileError);
}
