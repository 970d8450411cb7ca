#include "modyn/csv.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "modyn/errors.hpp"
#include "modyn/numbers.hpp"

namespace modyn {
namespace {

constexpr std::size_t first_window = 1 << 20;
// A row longer than this has a quote that is never closed.
constexpr std::size_t max_row = 256U << 20;
constexpr std::size_t max_bad_rows = 1000;

}  // namespace

CsvIndexer::CsvIndexer(std::string path, const Roots& roots, std::int64_t start, std::int64_t rows_before, CsvOptions options)
    : options_(options), file_(std::move(path), roots), window_(first_window), window_offset_(start), row_(rows_before) {
  if (start < 0) throw InvalidArgument("a file cannot be read from byte " + std::to_string(start));
  skip_start();
}

void CsvIndexer::skip_start() {
  read_more();
  if (window_offset_ > 0) {
    char before = '\n';
    if (file_.read_some(&before, 1, window_offset_ - 1) < 1) {
      throw FileError(FileFault::truncated, file_.path(), window_offset_ - 1, 1, 0, 0);
    }
    const bool complete = before == '\n' || filled_ == 0 || window_[0] == '\n' || window_[0] == '\r';
    if (!complete) fail(0, "the row before it was indexed when it had no line break yet, and was continued since; restore the file, or "
                           "delete its samples and add the data under a new name");
    return;
  }
  if (filled_ >= 3 && std::memcmp(window_.data(), "\xEF\xBB\xBF", 3) == 0) cursor_ = 3;  // UTF-8's byte order mark
  if (!options_.skip_first_line) return;
  Row header;
  while (!scan_row(header) && read_more()) {
  }
  cursor_ = header.next;
}

CsvRows CsvIndexer::next(std::size_t max_rows) {
  CsvRows rows;
  Row row;
  while (rows.offsets.size() < max_rows && rows.bad.size() < max_bad_rows) {
    ++row_;  // before the search: an error in it is an error in this row
    if (!find_row(row)) {
      --row_;
      break;
    }
    try {
      append(row, rows);
    } catch (const CsvError& error) {
      rows.labels.resize(rows.offsets.size());
      rows.timestamps.resize(options_.timestamp_column ? rows.offsets.size() : 0);
      rows.bad.push_back({window_offset_ + static_cast<std::int64_t>(row.begin), error.what(), row.next > row.end});
    }
    cursor_ = row.next;
  }
  return rows;
}

// Moves the cursor to the next row that is not empty.
bool CsvIndexer::find_row(Row& row) {
  for (;;) {
    if (!scan_row(row)) {
      if (!read_more()) return false;
      continue;
    }
    if (row.end > row.begin) return true;
    if (row.next == row.begin) return false;  // the end of the file
    cursor_ = row.next;
  }
}

// Slides the window to the cursor and fills it. Returns false if the file has no more.
bool CsvIndexer::read_more() {
  if (at_end_) return false;
  std::memmove(window_.data(), window_.data() + cursor_, filled_ - cursor_);
  filled_ -= cursor_;
  window_offset_ += static_cast<std::int64_t>(cursor_);
  cursor_ = 0;
  if (filled_ >= max_row) fail(0, "the row is longer than 256 MiB; most likely a quote in it is never closed");
  if (filled_ > window_.size() / 2) window_.resize(window_.size() * 2);
  const std::size_t wanted = window_.size() - filled_;
  const std::size_t got = file_.read_some(window_.data() + filled_, wanted, window_offset_ + static_cast<std::int64_t>(filled_));
  filled_ += got;
  at_end_ = got < wanted;
  return true;
}

bool CsvIndexer::scan_row(Row& row) const {
  row = Row{};
  row.begin = cursor_;
  std::size_t at = cursor_;
  // Copies: the compiler would load the members again for each byte.
  const char* const window = window_.data();
  const std::size_t filled = filled_;
  const char separator = options_.separator;
  for (;; ++row.fields) {
    Field field{at, at};
    if (at < filled_ && window_[at] == options_.quote && !scan_quoted(at)) return false;
    for (;; ++at) {
      while (at < filled && window[at] != separator && window[at] != '\n' && window[at] != '\r') ++at;
      if (at == filled || window[at] != '\r') break;
      // A \r alone is an ordinary character; whether it is alone depends on the byte after it.
      if (at + 1 == filled && !at_end_) return false;
      if (line_break(at) > 0) break;
    }
    if (at == filled_ && !at_end_) return false;
    field.end = at;
    if (row.fields == options_.label_column) row.label = field;
    if (row.fields == options_.timestamp_column) row.timestamp = field;
    if (at < filled_ && window_[at] == options_.separator) {
      ++at;
      continue;
    }
    ++row.fields;
    row.end = at;
    row.next = at + line_break(at);
    return true;
  }
}

// Moves `at` from an opening quote to behind the closing one.
bool CsvIndexer::scan_quoted(std::size_t& at) const {
  const std::size_t opening = at++;
  for (;;) {
    const void* found = std::memchr(window_.data() + at, *options_.quote, filled_ - at);
    if (found == nullptr) {
      if (!at_end_) return false;
      fail(opening, "the quote that opens here is never closed; close it, or set `quote` to another character");
    }
    at = static_cast<std::size_t>(static_cast<const char*>(found) - window_.data()) + 1;
    if (at == filled_ && !at_end_) return false;
    if (at == filled_ || window_[at] != options_.quote) return true;
    ++at;
  }
}

std::size_t CsvIndexer::line_break(std::size_t at) const {
  if (at >= filled_) return 0;
  if (window_[at] == '\n') return 1;
  if (window_[at] != '\r') return 0;
  if (at + 1 < filled_) return window_[at + 1] == '\n' ? 2 : 0;
  return at_end_ ? 1 : 0;  // the \n of a last \r may yet be written: it is then an empty line
}

void CsvIndexer::append(const Row& row, CsvRows& rows) const {
  if (!row.label) {
    fail(row.begin, "there is no column " + std::to_string(options_.label_column) + " for the label, only " +
                        std::to_string(row.fields) + " column(s); columns count from 0: check separator and label_index");
  }
  const auto read = [&](const Field& field, std::vector<std::int64_t>& column, const auto& parse, const char* advice) {
    const std::string text = text_of(field);
    const std::string problem = parse(text, column.emplace_back());
    if (!problem.empty()) fail(field.begin, "the field " + problem + advice);
  };
  const auto parse = [&](const std::string& text, std::int64_t& label) { return parse_label(text, options_.float_labels, label); };
  read(*row.label, rows.labels, parse, "; check label_index, label_type and ignore_first_line");
  if (options_.timestamp_column) {
    if (!row.timestamp) {
      fail(row.begin, "there is no column " + std::to_string(*options_.timestamp_column) + " for the time; check timestamp_source");
    }
    const auto parse_time = [&](const std::string& text, std::int64_t& seconds) {
      return options_.times.read(text, false, seconds) ? std::string() : options_.times.problem_of(text);
    };
    read(*row.timestamp, rows.timestamps, parse_time, "");
  }
  rows.offsets.push_back(window_offset_ + static_cast<std::int64_t>(row.begin));
  rows.lengths.push_back(static_cast<std::int64_t>(row.end - row.begin));
}

// The field without its quotes, doubled quotes made single.
std::string CsvIndexer::text_of(const Field& field) const {
  const std::string_view raw(window_.data() + field.begin, field.end - field.begin);
  if (raw.empty() || raw.front() != options_.quote) return std::string(raw);
  std::string text;
  std::size_t at = 1;
  for (; at < raw.size(); ++at) {
    if (raw[at] == options_.quote && ++at < raw.size() && raw[at] != options_.quote) break;
    if (at < raw.size()) text += raw[at];
  }
  if (at < raw.size()) text += raw.substr(at);  // what follows a closing quote belongs to the field
  return text;
}

void CsvIndexer::fail(std::size_t at, const std::string& problem) const {
  throw CsvError(file_.path(), std::max<std::int64_t>(row_, 1), window_offset_ + static_cast<std::int64_t>(at), problem);
}

}  // namespace modyn
