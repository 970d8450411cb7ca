// Times in text and in numbers, as whole seconds since 1970, rounded down. Only this module knows their spellings, units and bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace modyn {

// The first second of the year 1, and the last one of the year 9999. A time outside these bounds is a mistake.
constexpr std::int64_t first_second = -62135596800;
constexpr std::int64_t last_second = 253402300799;

// The format of times. Immutable, so that threads may share it.
//
// Empty: whole seconds since 1970, with or without a fraction, or ISO 8601: a date, or date and time with T, a blank or _ between, and Z, UTC or
// +HH:MM at the end; UTC without a zone. Digits that are probably something else are refused: more than 10^11 (milliseconds and finer units),
// and YYYYMMDD of the years 1900 to 2100, which would be a second of August 1970. In a `typed` text, from a format that also has numbers,
// YYYYMMDD is a date.
//
// s, ms, us, ns: a number of these units since 1970, without further checks.
//
// Otherwise directives of strptime: %Y %y %m %d %e %j %H %I %p %M %S %f %b %B %h %a %A %z %Z %F %T %%. A blank matches any number of blanks.
class TimeFormat {
 public:
  // Throws InvalidArgument: the format is none of the above, or does not determine the day or the year.
  explicit TimeFormat(std::string_view text);
  TimeFormat() : TimeFormat(std::string_view()) {}

  // Returns whether `text` or `number` is a time in this format; sets `seconds` if so.
  bool read(std::string_view text, bool typed, std::int64_t& seconds) const;
  bool read(std::int64_t number, std::int64_t& seconds) const;
  bool read(double number, std::int64_t& seconds) const;

  // Returns true if all numbers are valid times in whole seconds; false: not certain. Much faster than reading each number.
  bool are_seconds(const std::int64_t* numbers, std::size_t count) const;

  // Describes what is wrong with an unreadable text and what to write instead, as the predicate of a sentence. Quotes the text if it may be
  // shown.
  std::string problem_of(std::string_view text) const;
  std::string problem_of(std::int64_t number) const;
  std::string problem_of(double number) const;
  // Names other formats that would read the text, with the result; empty: none of the usual ones.
  std::string advice_for(std::string_view text) const;

  const std::string& text() const { return text_; }

 private:
  enum class Kind { automatic, unit, pattern };
  // A directive, or with `code` 0 literal characters, of which a blank matches any number of blanks. `fixed`: digits come directly before or
  // after it, so that all its own digits are required.
  struct Part {
    char code;
    bool fixed;
    std::string literal;
  };

  void compile(std::string_view pattern);
  bool read_pattern(std::string_view text, std::int64_t& seconds) const;
  bool read_number(std::string_view digits, bool negative, std::string_view fraction, std::int64_t& seconds) const;

  std::string text_;
  Kind kind_;
  std::int64_t per_second_ = 1;
  std::vector<Part> parts_;
};

// YYYY-MM-DD HH:MM:SS, of a time within the bounds above.
std::string show_time(std::int64_t seconds);

// Returns `text` in quotes if it looks like a number, a time or a few words, otherwise nothing: a wrong value in a file may be a secret, and
// messages are listed, logged and sent to clients.
std::string quoted(std::string_view text);

}  // namespace modyn
