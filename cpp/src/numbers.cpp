#include "modyn/numbers.hpp"

#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>

namespace modyn {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

enum class Parsed { ok, not_a_number, out_of_range };

template <typename Number>
Parsed parse_number(std::string_view text, Number& value) {
  text = trimmed(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);  // from_chars knows no plus sign
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) return Parsed::not_a_number;
  if (error == std::errc::result_out_of_range) return Parsed::out_of_range;
  return error == std::errc{} ? Parsed::ok : Parsed::not_a_number;
}

// Without the text, which may be a secret that stands in a file by mistake: reasons are listed, logged and sent to clients.
std::string describe(Parsed parsed, const char* wanted) {
  if (parsed == Parsed::ok) return {};
  return (parsed == Parsed::out_of_range ? "is out of the range of " : "is not ") + std::string(wanted);
}

// Whether `text` is a whole number that `value`, the float64 next to it, is not: from 2^53 on most are none.
bool is_rounded(std::string_view text, double value) {
  if (std::fabs(value) < 9007199254740992.0) return false;
  text = trimmed(text);
  const auto first = text.find_first_of("123456789");
  if (first == std::string_view::npos || text.find_first_not_of("0123456789", first) != std::string_view::npos) return false;
  char exact[400];  // the largest has 309 digits
  const auto end = std::to_chars(exact, exact + sizeof(exact), std::fabs(value), std::chars_format::fixed).ptr;
  return text.substr(first) != std::string_view(exact, static_cast<std::size_t>(end - exact));
}

// Takes exactly `digits` digits from the front of `text`.
bool take_digits(std::string_view& text, std::size_t digits, int& value) {
  if (text.size() < digits) return false;
  value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(digits);
  return true;
}

bool take(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

bool is_leap(int year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

bool is_date(int year, int month, int day) {
  constexpr int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (year < 1 || month < 1 || month > 12) return false;
  return day >= 1 && day <= lengths[month - 1] + (month == 2 && is_leap(year) ? 1 : 0);
}

// Days since 1970 in the proleptic Gregorian calendar; the year is counted from March, so that the leap day is its last.
std::int64_t days_since_1970(int year, int month, int day) {
  const std::int64_t y = month <= 2 ? year - 1 : year;
  const std::int64_t months = (month + 9) % 12;
  const std::int64_t day_of_year = (153 * months + 2) / 5 + day - 1;
  return y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719468;
}

// HH:MM[:SS[.fraction]] from the front of `text`.
bool take_time(std::string_view& text, std::int64_t& seconds) {
  int hour = 0;
  int minute = 0;
  int second = 0;
  if (!take_digits(text, 2, hour) || !take(text, ':') || !take_digits(text, 2, minute)) return false;
  if (take(text, ':')) {
    if (!take_digits(text, 2, second)) return false;
    if (take(text, '.')) {
      int digit = 0;
      if (!take_digits(text, 1, digit)) return false;
      while (take_digits(text, 1, digit)) {
      }
    }
  }
  seconds = hour * 3600 + minute * 60 + second;
  return hour < 24 && minute < 60 && second < 60;
}

// Z, +HH:MM, +HHMM or +HH, as seconds east of UTC.
bool take_zone(std::string_view& text, std::int64_t& seconds) {
  seconds = 0;
  if (text.empty() || take(text, 'Z')) return true;
  const int sign = text.front() == '-' ? -1 : 1;
  if (!take(text, '+') && !take(text, '-')) return false;
  int hours = 0;
  int minutes = 0;
  if (!take_digits(text, 2, hours)) return false;
  const bool colon = take(text, ':');
  if ((colon || !text.empty()) && !take_digits(text, 2, minutes)) return false;
  seconds = sign * (hours * 3600 + minutes * 60);
  return hours < 24 && minutes < 60;
}

Parsed parse_time(std::string_view text, std::int64_t& seconds) {
  const Parsed whole = parse_number(text, seconds);
  if (whole != Parsed::not_a_number) return whole;
  text = trimmed(text);
  int year = 0;
  int month = 0;
  int day = 0;
  if (!take_digits(text, 4, year) || !take(text, '-') || !take_digits(text, 2, month) || !take(text, '-') || !take_digits(text, 2, day) ||
      !is_date(year, month, day)) {
    return Parsed::not_a_number;
  }
  std::int64_t time = 0;
  std::int64_t zone = 0;
  if ((take(text, 'T') || take(text, ' ')) && !(take_time(text, time) && take_zone(text, zone))) return Parsed::not_a_number;
  if (!text.empty()) return Parsed::not_a_number;
  seconds = days_since_1970(year, month, day) * 86400 + time - zone;
  return Parsed::ok;
}

}  // namespace

std::string parse_label(std::string_view text, bool floats, std::int64_t& label) {
  if (!floats) return describe(parse_number(text, label), "an int64 label");
  double value = 0;
  const Parsed parsed = parse_number(text, value);
  std::memcpy(&label, &value, sizeof(label));
  if (parsed == Parsed::ok && is_rounded(text, value)) return "is a whole number that no float64 is: it would be rounded; set label_type to int";
  return describe(parsed, "a float64 label");
}

std::string parse_timestamp(std::string_view text, std::int64_t& seconds) {
  return describe(parse_time(text, seconds), "a time (whole seconds or ISO 8601)");
}

}  // namespace modyn
