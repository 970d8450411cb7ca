// The parts of a time in text, and the calendar, from which `TimeFormat` is built.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "modyn/times.hpp"

namespace modyn {

constexpr std::int64_t day_s = 86400;

// Of one character.
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80; }
inline char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

inline bool all_digits(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

inline bool take(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

// Removes `least` to `most` digits from the front of `text` and reads them.
inline bool take_digits(std::string_view& text, std::size_t least, std::size_t most, int& value) {
  value = 0;
  std::size_t count = 0;
  for (; count < most && count < text.size() && is_digit(text[count]); ++count) value = value * 10 + (text[count] - '0');
  if (count < least) return false;
  text.remove_prefix(count);
  return true;
}

inline bool take_digits(std::string_view& text, std::size_t count, int& value) { return take_digits(text, count, count, value); }

// A word of letters, in any case.
inline bool take_word(std::string_view& text, std::string_view word) {
  if (text.size() < word.size()) return false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    if (lower(text[i]) != word[i]) return false;
  }
  text.remove_prefix(word.size());
  return true;
}

inline constexpr std::array<std::string_view, 12> months = {"january", "february", "march",     "april",   "may",      "june",
                                                            "july",    "august",   "september", "october", "november", "december"};
inline constexpr std::array<std::string_view, 7> weekdays = {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"};

// Matches one of `names`, or its first three letters; returns its number from 1.
template <std::size_t n>
inline bool take_name(std::string_view& text, const std::array<std::string_view, n>& names, int& number) {
  for (std::size_t i = 0; i < n; ++i) {
    if (take_word(text, names[i]) || take_word(text, names[i].substr(0, 3))) {
      number = static_cast<int>(i) + 1;
      return true;
    }
  }
  return false;
}

inline bool within_bounds(std::int64_t seconds) { return seconds >= first_second && seconds <= last_second; }

bool is_leap(int year);
bool is_date(int year, int month, int day);
// Days since 1970 in the proleptic Gregorian calendar.
std::int64_t days_since_1970(int year, int month, int day);
std::int64_t floor_divide(std::int64_t number, std::int64_t by);
int year_of(std::int64_t seconds);

// Reads Z, UTC, GMT, +HH:MM, +HHMM, +HH, or an offset with seconds, from the front of `text`, as seconds east of UTC.
bool take_zone(std::string_view& text, std::int64_t& seconds);
// Reads all of `text` as ISO 8601: a date, or date and time, with or without a zone.
bool read_iso(std::string_view text, std::int64_t& seconds);

}  // namespace modyn
