// Finds the rows of a CSV file, and reads their label and time columns.
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
  bool class_labels = false;  // labels are texts, which `CsvRows::classes` holds
  std::optional<std::size_t> timestamp_column;
  bool skip_first_line = false;  // the first line names the columns and sets the number of fields; skipped only if reading starts at byte 0
  bool utf8 = true;              // rows must be UTF-8
  std::size_t max_field_lines = 1000;
  TimeFormat times;  // of the timestamp column
};

// A row that cannot be used.
struct BadRow {
  std::int64_t offset;
  std::string reason;  // with path, numbers of line and row, and byte
};

// Columns of some rows, all of the same length. The bytes of a row are [offset, offset + length), without its line break.
struct CsvRows {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> labels;      // float labels as their bits; 0 for texts
  std::vector<std::string> classes;      // labels that are texts
  std::vector<std::int64_t> timestamps;  // filled if requested
  std::vector<BadRow> bad;               // not included in the columns above
  // The only row of this chunk ends at the end of the file, or in an open quote, without a line break: more text may follow later.
  bool unended = false;
};

// Reads a file from byte `start` to its end, in chunks of rows. Rows end with \n, \r\n or \r; within quotes these are ordinary characters, and a
// doubled quote is one quote. A quote counts only at the start of a field. Empty lines are not rows. The last row needs no line break.
//
// A row is bad in these cases: its number of fields differs from the first line that names them, or else from most of the first rows; a quote is
// closed before the end of its field, never, or only after `max_field_lines` lines; it holds a NUL or is not UTF-8; its label or time cannot be
// read. A bad row with line breaks ends at the first of them, so that a lost quote does not swallow further rows.
//
// Holds one window of the file: 1 MiB, or the longest row. Not safe to share between threads.
class CsvIndexer {
 public:
  // `start`: position at which an earlier reader reached the end of the file. `rows_before`: the number of rows it had seen. Throws FileError, and
  // CsvError if the row before `start` had no line break and has been continued since.
  CsvIndexer(std::string path, const Roots& roots, std::int64_t start, std::int64_t rows_before, CsvOptions options);

  // Returns up to `max_rows` rows, with up to 1,000 bad ones between them; none at the end of the file. An incomplete row is returned alone.
  // Throws FileError, and CsvError if the start of the next row cannot be found.
  CsvRows next(std::size_t max_rows);
  const CsvOptions& options() const { return options_; }
  // Bytes of the file after the rows returned so far, including line breaks.
  std::int64_t position() const { return window_offset_ + static_cast<std::int64_t>(cursor_); }
  // Number of fields of each row; 0 if it is not known, for example because the file has no complete row.
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
    const char* fault = nullptr;  // problem of the quote at `fault_at`
    std::size_t fault_at = 0;
    bool ended = true;  // whether a line break ends the row
  };

  void skip_start();
  void skip_mark();
  void count_columns();
  bool find_row(Row& row);
  // Both return false if the window ends too early and the file may continue.
  bool scan_row(Row& row) const;
  bool scan_quoted(std::size_t& at, Row& row) const;
  bool end_at_first_line(Row& row) const;
  // Returns the number of bytes of the line break at `at`, or 0. Called only with more than one byte in the window, or at the end of the file.
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
  bool is_plain_ = true;           // the window is pure ASCII without NUL
  std::size_t num_columns_ = 0;    // fields of each row; 0: not known
  mutable std::int64_t counted_to_ = 0;  // line breaks before this byte of the file are counted, for messages
  mutable std::int64_t lines_ = 0;
};

}  // namespace modyn
