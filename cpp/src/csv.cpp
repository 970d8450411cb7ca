#include "modyn/csv.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "modyn/errors.hpp"
#include "modyn/numbers.hpp"
#include "modyn/text.hpp"

namespace modyn {
namespace {

constexpr std::size_t first_window = 1 << 20;
// Number of first rows that decide the number of fields by majority.
constexpr std::size_t first_look = 1 << 16;
constexpr std::size_t rows_of_look = 1000;
constexpr std::size_t max_row = 256U << 20;
constexpr std::size_t max_bad_rows = 1000;

}  // namespace

CsvIndexer::CsvIndexer(std::string path, const Roots& roots, std::int64_t start, std::int64_t rows_before, CsvOptions options)
    : options_(options), file_(std::move(path), roots), window_(first_look), window_offset_(0), row_(rows_before) {
  if (start < 0) throw InvalidArgument("a file cannot be read from byte " + std::to_string(start));
  count_columns();
  window_.assign(first_window, 0);
  filled_ = cursor_ = 0;
  at_end_ = false;
  window_offset_ = start;
  skip_start();
}

// Determines the number of fields of a row: that of the first line if it names them, else that of most of the first rows. A row that may be
// continued, or that has a lost quote, does not count.
void CsvIndexer::count_columns() {
  read_more();
  skip_mark();
  std::map<std::size_t, std::pair<std::size_t, std::size_t>> counts;  // fields → number of such rows, and of rows before the first such row
  Row row;
  for (std::size_t found = 0; found < rows_of_look;) {
    if (!scan_row(row)) {
      if (found > 0 || !read_more()) break;
      continue;
    }
    if (row.next == row.begin) break;  // the end of the file
    cursor_ = row.next;
    if (row.end == row.begin && !options_.skip_first_line) continue;
    if (row.fault == nullptr && row.ended && row.end > row.begin) {
      auto& [rows, before] = counts[row.fields];
      if (rows++ == 0) before = found;
    }
    ++found;
    if (options_.skip_first_line) break;
  }
  std::size_t most = 0;
  std::size_t first = 0;
  for (const auto& [fields, count] : counts) {
    const auto& [rows, before] = count;
    if (rows > most || (rows == most && before < first)) std::tie(num_columns_, most, first) = std::tuple(fields, rows, before);
  }
}

void CsvIndexer::skip_start() {
  read_more();
  if (window_offset_ > 0) {
    char before = '\n';
    if (file_.read_some(&before, 1, window_offset_ - 1) < 1) {
      throw FileError(FileFault::truncated, file_.path(), window_offset_ - 1, 1, 0, 0);
    }
    const bool complete = before == '\n' || before == '\r' || filled_ == 0 || window_[0] == '\n' || window_[0] == '\r';
    if (!complete) fail(0, "the row before it was indexed when it had no line break yet, and was continued since; restore the file, or "
                           "take what it holds now with `modyn data reindex NAME FILE`");
    return;
  }
  skip_mark();
  if (!options_.skip_first_line) return;
  Row header;
  while (!scan_row(header) && read_more()) {
  }
  if (header.fault != nullptr) fail(header.fault_at, header.fault);
  cursor_ = header.next;
}

void CsvIndexer::skip_mark() {
  if (std::string_view(window_.data(), filled_).substr(0, byte_order_mark.size()) == byte_order_mark) cursor_ = byte_order_mark.size();
}

CsvRows CsvIndexer::next(std::size_t max_rows) {
  CsvRows rows;
  Row row;
  while (rows.offsets.size() < max_rows && rows.bad.size() < max_bad_rows) {
    ++row_;  // before the search, so that an error names this row
    if (!find_row(row) || (!row.ended && !(rows.offsets.empty() && rows.bad.empty()))) {
      --row_;
      break;
    }
    try {
      append(row, rows);
    } catch (const CsvError& error) {
      rows.labels.resize(rows.offsets.size());
      rows.classes.resize(options_.class_labels ? rows.offsets.size() : 0);
      rows.timestamps.resize(options_.timestamp_column ? rows.offsets.size() : 0);
      rows.bad.push_back({window_offset_ + static_cast<std::int64_t>(row.begin), error.what()});
    }
    cursor_ = row.next;
    if (!row.ended) {
      rows.unended = true;
      break;
    }
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

// Moves the window to the cursor and fills it. Returns false at the end of the file.
bool CsvIndexer::read_more() {
  if (at_end_) return false;
  std::memmove(window_.data(), window_.data() + cursor_, filled_ - cursor_);
  filled_ -= cursor_;
  window_offset_ += static_cast<std::int64_t>(cursor_);
  cursor_ = 0;
  if (filled_ >= max_row) fail(0, "the row is longer than 256 MiB; split it, or correct its line breaks and quotes");
  if (filled_ > window_.size() / 2) window_.resize(window_.size() * 2);
  const std::size_t wanted = window_.size() - filled_;
  const std::size_t got = file_.read_some(window_.data() + filled_, wanted, window_offset_ + static_cast<std::int64_t>(filled_));
  filled_ += got;
  at_end_ = got < wanted;
  is_plain_ = is_plain_ascii({window_.data(), filled_});
  return true;
}

bool CsvIndexer::scan_row(Row& row) const {
  row = Row{};
  row.begin = cursor_;
  std::size_t at = cursor_;
  // Local copies: the compiler would reload the members for each byte.
  const char* const window = window_.data();
  const std::size_t filled = filled_;
  const char separator = options_.separator;
  bool has_quotes = false;
  for (;; ++row.fields) {
    Field field{at, at};
    if (at < filled && window[at] == options_.quote) {
      has_quotes = true;
      std::size_t after_quotes = at;  // a copy, so that the compiler keeps `at` in a register
      if (!scan_quoted(after_quotes, row)) return false;
      if (row.fault != nullptr) return end_at_first_line(row);
      at = after_quotes;
    }
    while (at < filled && window[at] != separator && window[at] != '\n' && window[at] != '\r') ++at;
    // The byte after a \r decides whether the \r alone is a line break.
    if ((at == filled || (window[at] == '\r' && at + 1 == filled)) && !at_end_) return false;
    field.end = at;
    if (row.fields == options_.label_column) row.label = field;
    if (row.fields == options_.timestamp_column) row.timestamp = field;
    if (at < filled && window[at] == separator) {
      ++at;
      continue;
    }
    ++row.fields;
    row.end = at;
    row.next = at + line_break(at);
    row.ended = row.next > at;
    // A lost quote and the next quote may enclose several rows.
    if (has_quotes && num_columns_ > 0 && row.fields != num_columns_) {
      const bool ended = row.ended;
      if (!end_at_first_line(row)) return false;
      row.ended = ended;
    }
    return true;
  }
}

// Moves `at` from an opening quote to the position after the closing one, or sets the row's fault. Returns false if the window ends too early.
bool CsvIndexer::scan_quoted(std::size_t& at, Row& row) const {
  const std::size_t opening = at++;
  const auto fault = [&](const char* what, bool ended) {
    row.fault = what;
    row.fault_at = opening;
    row.ended = ended;
    return true;
  };
  const auto has_too_many_lines = [&](std::size_t end) {
    if (end - opening <= options_.max_field_lines) return false;
    const char* const window = window_.data();
    const auto breaks = std::max(std::count(window + opening, window + end, '\n'), std::count(window + opening, window + end, '\r'));
    return static_cast<std::size_t>(breaks) >= options_.max_field_lines;
  };
  constexpr auto too_long = "the field that a quote opens here has more lines than max_field_lines; most likely a quote was lost";
  for (;;) {
    const void* found = std::memchr(window_.data() + at, *options_.quote, filled_ - at);
    if (found == nullptr) {
      if (has_too_many_lines(filled_)) return fault(too_long, true);
      if (!at_end_) return false;
      return fault("the quote that opens here is never closed; close it, or set `quote` to another character", false);
    }
    at = static_cast<std::size_t>(static_cast<const char*>(found) - window_.data()) + 1;
    if (at == filled_ && !at_end_) return false;
    if (at < filled_ && window_[at] == options_.quote) {
      ++at;
      continue;
    }
    if (has_too_many_lines(at)) return fault(too_long, true);
    if (at == filled_ || window_[at] == options_.separator || window_[at] == '\n' || window_[at] == '\r') return true;
    return fault("text follows the closing quote of the field that a quote opens here; double the quotes within it, or close it where it ends", true);
  }
}

// Ends a bad row at its first line break. Returns false if the window ends before it.
bool CsvIndexer::end_at_first_line(Row& row) const {
  const char* const begin = window_.data() + row.begin;
  const char* const end = window_.data() + filled_;
  const char* const found = std::find_if(begin, end, [](char c) { return c == '\n' || c == '\r'; });
  const auto at = static_cast<std::size_t>(found - window_.data());
  if ((at == filled_ || (*found == '\r' && at + 1 == filled_)) && !at_end_) return false;
  row.end = at;
  row.next = at + line_break(at);
  if (row.next == at) row.ended = false;
  return true;
}

std::size_t CsvIndexer::line_break(std::size_t at) const {
  if (at >= filled_) return 0;
  if (window_[at] == '\n') return 1;
  if (window_[at] != '\r') return 0;
  return at + 1 < filled_ && window_[at + 1] == '\n' ? 2 : 1;  // if \n is written after a last \r later, it is an empty line
}

void CsvIndexer::append(const Row& row, CsvRows& rows) const {
  if (row.fault != nullptr) fail(row.fault_at, row.fault);
  if (!is_plain_) check_text(row);
  if (!row.label) {
    fail(row.begin, "there is no column " + std::to_string(options_.label_column) + " for the label, only " +
                        std::to_string(row.fields) + " column(s); columns count from 0: check separator and label_index");
  }
  if (options_.timestamp_column && !row.timestamp) {
    fail(row.begin, "there is no column " + std::to_string(*options_.timestamp_column) + " for the time; check timestamp_source");
  }
  if (num_columns_ > 0 && row.fields != num_columns_) {
    fail(row.begin, "the row has " + std::to_string(row.fields) + " field(s), and " +
                        (options_.skip_first_line ? "the first line names " : "most of the first rows have ") + std::to_string(num_columns_) +
                        "; check its separators and quotes");
  }
  const auto read = [&](const Field& field, std::vector<std::int64_t>& column, const auto& parse, const char* advice) {
    const std::string text = text_of(field);
    const std::string problem = parse(text, column.emplace_back());
    if (!problem.empty()) fail(field.begin, "the field " + problem + advice);
  };
  const auto parse = [&](const std::string& text, std::int64_t& label) {
    if (!options_.class_labels) return parse_label(text, options_.float_labels, label);
    rows.classes.push_back(text);
    return std::string(text.empty() ? "is empty, and the label names a class" : "");
  };
  read(*row.label, rows.labels, parse, "; check label_index, label_type and ignore_first_line");
  if (options_.timestamp_column) {
    const auto parse_time = [&](const std::string& text, std::int64_t& seconds) {
      return options_.times.read(text, false, seconds) ? std::string() : options_.times.problem_of(text);
    };
    read(*row.timestamp, rows.timestamps, parse_time, "");
  }
  rows.offsets.push_back(window_offset_ + static_cast<std::int64_t>(row.begin));
  rows.lengths.push_back(static_cast<std::int64_t>(row.end - row.begin));
}

void CsvIndexer::check_text(const Row& row) const {
  const std::string_view text(window_.data() + row.begin, row.end - row.begin);
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    fail(row.begin + nul, "a NUL byte stands here: the file is damaged, or no text");
  }
  if (!options_.utf8) return;
  if (const auto wrong = first_not_utf8(text); wrong < text.size()) {
    fail(row.begin + wrong, "the byte here is not UTF-8; set `encoding`, to latin-1 or cp1252 say, or correct the file");
  }
}

// The field without its quotes; doubled quotes become single.
std::string CsvIndexer::text_of(const Field& field) const {
  const std::string_view raw(window_.data() + field.begin, field.end - field.begin);
  if (raw.empty() || raw.front() != options_.quote) return std::string(raw);
  std::string text;
  for (std::size_t at = 1; at < raw.size(); ++at) {
    if (raw[at] == options_.quote && ++at == raw.size()) break;
    text += raw[at];
  }
  return text;
}

void CsvIndexer::fail(std::size_t at, const std::string& problem) const {
  const std::int64_t offset = window_offset_ + static_cast<std::int64_t>(at);
  throw CsvError(file_.path(), line_at(offset), std::max<std::int64_t>(row_, 1), offset, problem);
}

// The line number of a byte, from 1; counting continues from the last request.
std::int64_t CsvIndexer::line_at(std::int64_t offset) const {
  if (offset < counted_to_) counted_to_ = lines_ = 0;
  std::vector<char> part(1 << 16);
  while (counted_to_ < offset) {
    const auto wanted = std::min<std::int64_t>(static_cast<std::int64_t>(part.size()) - 1, offset - counted_to_);
    const std::size_t got = file_.read_some(part.data(), static_cast<std::size_t>(wanted) + 1, counted_to_);
    const std::size_t count = std::min(got, static_cast<std::size_t>(wanted));
    if (count == 0) break;
    for (std::size_t i = 0; i < count; ++i) {
      lines_ += part[i] == '\n' || (part[i] == '\r' && (i + 1 >= got || part[i + 1] != '\n'));
    }
    counted_to_ += static_cast<std::int64_t>(count);
  }
  return lines_ + 1;
}

}  // namespace modyn
