#include "time_parts.hpp"

#include <cstdio>
#include <string>

namespace modyn {

bool is_leap(int year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

bool is_date(int year, int month, int day) {
  constexpr int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (year < 1 || month < 1 || month > 12) return false;
  return day >= 1 && day <= lengths[month - 1] + (month == 2 && is_leap(year) ? 1 : 0);
}

// Years start in March, so that the leap day is the last.
std::int64_t days_since_1970(int year, int month, int day) {
  const std::int64_t y = month <= 2 ? year - 1 : year;
  const std::int64_t since_march = (month + 9) % 12;
  const std::int64_t day_of_year = (153 * since_march + 2) / 5 + day - 1;
  return y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719468;
}

std::int64_t floor_divide(std::int64_t number, std::int64_t by) { return number / by - (number % by < 0 ? 1 : 0); }

int year_of(std::int64_t seconds) {
  const std::int64_t days = floor_divide(seconds, day_s);
  int year = static_cast<int>(1970 + floor_divide(days * 400, 146097));
  while (days < days_since_1970(year, 1, 1)) --year;
  while (days >= days_since_1970(year + 1, 1, 1)) ++year;
  return year;
}

namespace {

// Reads a date of ISO 8601 from the front of `text`: YYYY-MM-DD, YYYYMMDD, YYYY-Www[-D] or YYYYWww[D].
bool take_date(std::string_view& text, std::int64_t& days) {
  int year = 0;
  int month = 0;
  int day = 0;
  if (!take_digits(text, 4, year)) return false;
  const bool dashes = take(text, '-');
  if (take(text, 'W')) {
    int week = 0;
    int weekday = 1;
    if (!take_digits(text, 2, week)) return false;
    const bool has_weekday = dashes ? take(text, '-') : !text.empty() && is_digit(text.front());
    if (has_weekday && !take_digits(text, 1, weekday)) return false;
    if (year < 1 || week < 1 || week > 53 || weekday < 1 || weekday > 7) return false;
    // The first week contains the fourth of January.
    const auto monday = [](int of_year) {
      const std::int64_t fourth = days_since_1970(of_year, 1, 4);
      return fourth - (((fourth + 3) % 7 + 7) % 7);
    };
    days = monday(year) + (week - 1) * 7 + weekday - 1;
    return week < 53 || monday(year) + 52 * 7 < monday(year + 1);
  }
  if (!take_digits(text, 2, month) || (dashes && !take(text, '-')) || !take_digits(text, 2, day) || !is_date(year, month, day)) return false;
  days = days_since_1970(year, month, day);
  return true;
}

// Reads HH[:MM[:SS[.fraction]]] from the front of `text`, with or without colons.
bool take_time(std::string_view& text, std::int64_t& seconds) {
  int hour = 0;
  int minute = 0;
  int second = 0;
  if (!take_digits(text, 2, hour)) return false;
  const bool colons = take(text, ':');
  if (colons || (!text.empty() && is_digit(text.front()))) {
    if (!take_digits(text, 2, minute)) return false;
    if (colons ? take(text, ':') : !text.empty() && is_digit(text.front())) {
      if (!take_digits(text, 2, second)) return false;
      if (take(text, '.') || take(text, ',')) {
        int digit = 0;
        if (!take_digits(text, 1, digit)) return false;
        while (take_digits(text, 1, digit)) {
        }
      }
    }
  }
  seconds = hour * 3600 + minute * 60 + second;
  return hour < 24 && minute < 60 && second < 60;
}

}  // namespace

bool take_zone(std::string_view& text, std::int64_t& seconds) {
  seconds = 0;
  if (take(text, 'Z') || take(text, 'z') || take_word(text, "utc") || take_word(text, "gmt")) return true;
  const int sign = !text.empty() && text.front() == '-' ? -1 : 1;
  if (!take(text, '+') && !take(text, '-')) return false;
  std::int64_t east = 0;
  if (!take_time(text, east)) return false;
  seconds = sign * east;
  return true;
}

bool read_iso(std::string_view text, std::int64_t& seconds) {
  std::int64_t days = 0;
  std::int64_t time = 0;
  std::int64_t zone = 0;
  if (!take_date(text, days)) return false;
  if (!text.empty()) {
    if (!take(text, 'T') && !take(text, ' ') && !take(text, 't') && !take(text, '_')) return false;
    if (!take_time(text, time)) return false;
    const bool blank = take(text, ' ');
    if ((blank || !text.empty()) && !take_zone(text, zone)) return false;
  }
  if (!text.empty()) return false;
  seconds = days * day_s + time - zone;
  return within_bounds(seconds);
}

std::string show_time(std::int64_t seconds) {
  const int year = year_of(seconds);
  const std::int64_t day = floor_divide(seconds, day_s);
  const std::int64_t rest = seconds - day * day_s;
  int month = 12;
  while (days_since_1970(year, month, 1) > day) --month;
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02d-%02d %02d:%02d:%02d", year, month, static_cast<int>(day - days_since_1970(year, month, 1)) + 1,
                static_cast<int>(rest / 3600), static_cast<int>(rest / 60 % 60), static_cast<int>(rest % 60));
  return text.data();
}

std::string quoted(std::string_view text) {
  constexpr std::size_t most_bytes = 40;
  constexpr std::size_t longest_word = 12;
  if (text.empty() || text.size() > most_bytes) return {};
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && (is_digit(text[end]) || is_letter(text[end]))) ++end;
    if (end == at) {
      constexpr std::string_view allowed = " .,:;/+-_()%$#?!'&*<>";
      if (allowed.find(text[at++]) == std::string_view::npos) return {};
      continue;
    }
    std::string_view token = text.substr(at, end - at);
    at = end;
    const bool word = std::all_of(token.begin(), token.end(), is_letter);
    if (word ? token.size() > longest_word : !std::any_of(token.begin(), token.end(), is_digit)) return {};
    if (word) continue;
    // Digits, and characters that occur between them in numbers and times.
    for (int number = 0; !token.empty();) {
      if (take_digits(token, 1, 4, number) || take_name(token, months, number) || take_word(token, "am") || take_word(token, "pm") || take_word(token, "utc")) continue;
      if (!take_word(token, "t") && !take_word(token, "z") && !take_word(token, "e") && !take_word(token, "w") && !take_word(token, "h")) return {};
    }
  }
  return "'" + std::string(text) + "'";
}

}  // namespace modyn
