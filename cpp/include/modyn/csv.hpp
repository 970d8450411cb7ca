// Where the rows of a CSV file are, and what their label and time columns say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "modyn/file.hpp"
#include "modyn/times.hpp"

namespace modyn {

struct CsvOptions {
  char separator = ',';
  std::optional<char> quote = '"';
  std::size_t label_column = 0;
  bool float_labels = false;
  std::optional<std::size_t> timestamp_column;
  bool skip_first_line = false;  // it names the columns: each row has as many fields; not skipped unless reading starts at byte 0
  bool utf8 = true;              // rows must be UTF-8
  std::size_t max_field_lines = 1000;
  TimeFormat times;  // of the timestamp column
};

// A row that cannot be used.
struct BadRow {
  std::int64_t offset;
  std::string reason;  // with path, numbers of line and row, and byte
};

// Columns of some rows, each of the same length. A row's bytes are [offset, offset + length), without its line break.
struct CsvRows {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> labels;      // of float labels the bits
  std::vector<std::int64_t> timestamps;  // filled if asked for
  std::vector<BadRow> bad;               // are in no column
  // The one row of this chunk ends with the file, or with the quote that opens in it, and not with a line break: it may yet be continued.
  bool unended = false;
};

// Reads a file from byte `start` to its end, in chunks of rows. Rows end with \n, \r\n or \r; within quotes these are ordinary, and a doubled
// quote is one quote. A quote counts only at the start of a field. Empty lines are no rows. The last row needs no line break.
//
// A row is bad if it has another number of fields than the first line, which names them, or else than most of the first rows; if a quote is
// closed before the end of its field, not closed at all, or only after `max_field_lines` lines: it was lost, or one too many; if it holds a NUL,
// or is not UTF-8; or if its label or time cannot be read. A bad row that holds line breaks ends at the first of them: rows that a lost quote
// would swallow are found.
//
// Holds one window of the file: 1 MiB, or the longest row. Not safe to share between threads.
class CsvIndexer {
 public:
  // `start` is where an earlier reader stood at the end of the file; `rows_before` is how many rows it had seen. Throws FileError, and
  // CsvError if the row before `start` had no line break and was continued since.
  CsvIndexer(std::string path, const Roots& roots, std::int64_t start, std::int64_t rows_before, CsvOptions options);

  // Up to `max_rows` rows, and up to 1,000 bad ones between them; none at the end of the file. A row that is not ended comes alone. Throws
  // FileError, and CsvError where it cannot be known where the next row begins.
  CsvRows next(std::size_t max_rows);
  const CsvOptions& options() const { return options_; }
  // Bytes of the file that are behind the rows given so far, line breaks included.
  std::int64_t position() const { return window_offset_ + static_cast<std::int64_t>(cursor_); }
  // Fields that each row must have; 0: not known, for example since the file has no whole row.
  std::size_t num_columns() const { return num_columns_; }

 private:
  // A field's bytes in the window, with its quotes.
  struct Field {
    std::size_t begin;
    std::size_t end;
  };
  // A row in the window: [begin, end), then its line break up to `next`.
  struct Row {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t next = 0;
    std::size_t fields = 0;
    std::optional<Field> label;
    std::optional<Field> timestamp;
    const char* fault = nullptr;  // of the quote at `fault_at`
    std::size_t fault_at = 0;
    bool ended = true;  // by a line break
  };

  void skip_start();
  void skip_mark();
  void count_columns();
  bool find_row(Row& row);
  // Both are false where the window ends too early, and the file may go on.
  bool scan_row(Row& row) const;
  bool scan_quoted(std::size_t& at, Row& row) const;
  bool end_at_first_line(Row& row) const;
  // Bytes of the line break at `at`; 0 if there is none. Only asked where more than one byte is in the window, or at the end of the file.
  std::size_t line_break(std::size_t at) const;
  bool read_more();
  void append(const Row& row, CsvRows& rows) const;
  void check_text(const Row& row) const;
  std::string text_of(const Field& field) const;
  [[noreturn]] void fail(std::size_t at, const std::string& problem) const;
  std::int64_t line_at(std::int64_t offset) const;

  CsvOptions options_;
  File file_;
  std::vector<char> window_;
  std::size_t filled_ = 0;  // bytes of the window that are read
  std::size_t cursor_ = 0;  // in the window: start of the next row
  std::int64_t window_offset_;
  std::int64_t row_;  // rows found so far
  bool at_end_ = false;
  bool is_plain_ = true;           // the window holds ASCII alone, and no NUL
  std::size_t num_columns_ = 0;    // fields of each row; 0: not known
  mutable std::int64_t counted_to_ = 0;  // line breaks before this byte of the file are counted, for messages
  mutable std::int64_t lines_ = 0;
};

}  // namespace modyn
