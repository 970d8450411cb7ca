#include "modyn/times.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "modyn/errors.hpp"
#include "time_parts.hpp"

namespace modyn {
namespace {

// A larger number of seconds is in the year 5138 or later; the same number of milliseconds is in 1973 or later.
constexpr std::int64_t most_seconds = 100'000'000'000;
// Dates in the form YYYYMMDD most likely have one of these years.
constexpr int first_year = 1900;
constexpr int last_year = 2100;

// Returns whether a number of seconds has eight digits that begin with a year, like a day YYYYMMDD, even one that the calendar does not have.
bool looks_like_date(std::int64_t number) { return number >= first_year * 10000 && number < (last_year + 1) * 10000; }

// Common formats, for advice in messages.
const std::vector<TimeFormat>& usual_formats() {
  static const auto* const formats = [] {
    auto* const made = new std::vector<TimeFormat>();
    for (const char* const text : {"", "%Y%m%d", "%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H", "%Y%m", "%y%m%d", "%Y", "%Y%m%d.0", "%Y%m.0", "%Y.0", "s", "ms", "us", "ns"}) made->emplace_back(text);
    for (const char* const date : {"%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y", "%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d %b %Y",
                                   "%d-%b-%Y", "%d-%b-%y", "%d%b%Y", "%b %d, %Y", "%b %d %Y", "%Y_%m_%d"}) {
      for (const char* const time : {"", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", " %I:%M%p", ", %I:%M:%S %p", ", %H:%M:%S", " %H:%M:%S %z", ":%H:%M:%S"}) {
        made->emplace_back(std::string(date) + time);
      }
    }
    for (const char* const text : {"%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %Z %Y", "%Y-%m-%d-%H", "%Y-%m-%d %I:%M:%S %p",
                                   "%Y-%m-%d-%H%M%S", "%Y-%m-%d_%H-%M-%S", "%Y%m%d-%H%M%S", "%Y-%m", "%Y/%m", "%m/%Y", "%b %Y"}) {
      made->emplace_back(text);
    }
    return made;
  }();
  return *formats;
}

bool is_number(std::string_view text) {
  if (!text.empty() && (text.front() == '+' || text.front() == '-')) text.remove_prefix(1);
  const std::size_t point = std::min(text.find('.'), text.size());
  return all_digits(text.substr(0, point)) && (point == text.size() || all_digits(text.substr(point + 1)));
}

// Returns whether a text has the digits of a date YYYYMMDD that the calendar does not have.
bool is_no_day(std::string_view text) {
  const std::string_view whole = text.substr(0, text.find('.'));
  int number = 0;
  if (!is_number(text) || whole.size() != 8 || !all_digits(whole)) return false;
  std::from_chars(whole.data(), whole.data() + whole.size(), number);
  return looks_like_date(number) && !is_date(number / 10000, number / 100 % 100, number % 100);
}

}  // namespace

TimeFormat::TimeFormat(std::string_view text) : text_(text), kind_(Kind::automatic) {
  for (const auto& [unit, per_second] : {std::pair{"s", 1}, {"ms", 1'000}, {"us", 1'000'000}, {"ns", 1'000'000'000}}) {
    if (text == unit) {
      kind_ = Kind::unit;
      per_second_ = per_second;
      return;
    }
  }
  if (text.empty()) return;
  kind_ = Kind::pattern;
  std::string expanded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view two = text.substr(at, 2);
    expanded += two == "%F" ? "%Y-%m-%d" : two == "%T" ? "%H:%M:%S" : two == "%%" ? "%%" : text.substr(at, 1);
    at += two == "%F" || two == "%T" || two == "%%" ? 1 : 0;
  }
  compile(expanded);
}

void TimeFormat::compile(std::string_view pattern) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument("timestamp_format '" + text_ + "' " + why + "; write for example %Y%m%d_%H%M%S, or one of s, ms, us, ns for a number of them");
  };
  constexpr std::string_view known = "YymdejHIpMSfbBhaAzZ";
  std::string found;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '%') {
      if (parts_.empty() || parts_.back().code != 0) parts_.push_back({0, false, ""});
      parts_.back().literal += pattern[at];
      continue;
    }
    const char code = ++at < pattern.size() ? pattern[at] : '\0';
    if (code == '%') {
      parts_.push_back({0, false, "%"});
    } else if (known.find(code) == std::string_view::npos || code == '\0') {
      refuse(std::string("has a directive that is not known: %") + (code == '\0' ? "" : std::string(1, code)));
    } else {
      const char same = code == 'e' ? 'd' : code == 'B' || code == 'h' ? 'b' : code == 'A' ? 'a' : code;
      if (found.find(same) != std::string::npos) refuse(std::string("has %") + same + " twice");
      found += same;
      parts_.push_back({same, false, ""});
    }
  }
  const auto begins = [&](const Part& part) { return part.code == 0 ? is_digit(part.literal.front()) : std::string_view("YymdjHIMSf").find(part.code) != std::string_view::npos; };
  const auto ends = [&](const Part& part) { return part.code == 0 ? is_digit(part.literal.back()) : begins(part); };
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].fixed = (i + 1 < parts_.size() && begins(parts_[i + 1])) || (i > 0 && ends(parts_[i - 1]));
  }
  const auto has = [&](char code) { return found.find(code) != std::string::npos; };
  const bool has_month = has('m') || has('b');
  const bool has_day = has('j') || (has_month && has('d'));
  const bool has_time = has('H') || has('I') || has('M') || has('S') || has('f') || has('p');
  if (has('Y') == has('y') || has('m') + has('b') + has('j') > 1 || (has('d') && !has_month) || (has_time && !has_day)) {
    refuse("leaves out year, month or day, or has one of them twice");
  }
  if (has('H') + has('I') > 1 || has('I') != has('p') || ((has('M') || has('S')) && !has('H') && !has('I')) || (has('S') && !has('M')) || (has('f') && !has('S'))) {
    refuse("has no hour to its minute, no minute to its second, or no %p to its %I");
  }
}

bool TimeFormat::read_pattern(std::string_view text, std::int64_t& seconds) const {
  int year = 0;
  int month = 1;
  int day = 1;
  int day_of_year = 0;
  int hour = 0;
  int minute = 0;
  int second = 0;
  int half = -1;
  int ignored = 0;
  std::int64_t zone = 0;
  for (const Part& part : parts_) {
    const auto number = [&](std::size_t most, int& value) { return take_digits(text, part.fixed ? most : 1, most, value); };
    bool taken = true;
    switch (part.code) {
      case 0:
        for (const char c : part.literal) {
          if (!is_blank(c)) {
            taken = taken && take(text, c);
          } else {
            taken = taken && !text.empty() && is_blank(text.front());
            while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
          }
        }
        break;
      case 'Y': taken = take_digits(text, 4, year); break;
      case 'y':
        taken = take_digits(text, 2, year);
        year += year < 69 ? 2000 : 1900;
        break;
      case 'm': taken = number(2, month); break;
      case 'b': taken = take_name(text, months, month); break;
      case 'd':
        if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
        taken = number(2, day);
        break;
      case 'j': taken = number(3, day_of_year) && day_of_year > 0; break;
      case 'H': taken = number(2, hour) && hour < 24; break;
      case 'I': taken = number(2, hour) && hour >= 1 && hour <= 12; break;
      case 'p':
        half = take_word(text, "pm") ? 1 : take_word(text, "am") ? 0 : -1;
        taken = half >= 0;
        break;
      case 'M': taken = number(2, minute) && minute < 60; break;
      case 'S': taken = number(2, second) && second < 60; break;
      case 'f': taken = take_digits(text, 1, 9, ignored); break;
      case 'a': taken = take_name(text, weekdays, ignored); break;
      case 'z': taken = take_zone(text, zone); break;
      case 'Z': taken = take_word(text, "utc") || take_word(text, "gmt") || take(text, 'Z'); break;
    }
    if (!taken) return false;
  }
  if (!text.empty() || !is_date(year, month, day) || day_of_year > 365 + (is_leap(year) ? 1 : 0)) return false;
  if (half >= 0) hour = hour % 12 + 12 * half;
  const std::int64_t days = day_of_year > 0 ? days_since_1970(year, 1, 1) + day_of_year - 1 : days_since_1970(year, month, day);
  seconds = days * day_s + hour * 3600 + minute * 60 + second - zone;
  return within_bounds(seconds);
}

bool TimeFormat::read_number(std::string_view digits, bool negative, std::string_view fraction, std::int64_t& seconds) const {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc{} || end != digits.data() + digits.size()) return false;
  const bool has_rest = std::any_of(fraction.begin(), fraction.end(), [](char c) { return c != '0'; });
  // Rounding down makes a negative number with a fraction smaller.
  return read(negative ? -number - (has_rest ? 1 : 0) : number, seconds);
}

bool TimeFormat::read(std::string_view text, bool typed, std::int64_t& seconds) const {
  text = trimmed(text);
  if (kind_ == Kind::pattern) return read_pattern(text, seconds);
  const bool is_typed_date = typed && kind_ == Kind::automatic && text.size() == 8 && all_digits(text);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  // Most times are a whole number, which needs no parsing of parts. Most others begin with a number that ends at a dash.
  if (error == std::errc{} && end == text.data() + text.size() && !is_typed_date) return read(number, seconds);
  if (error == std::errc{} && end != text.data() + text.size() && *end == '-') return kind_ == Kind::automatic && read_iso(text, seconds);
  std::string_view digits = text;
  const bool negative = take(digits, '-');
  if (!negative) take(digits, '+');
  const std::size_t point = std::min(digits.find('.'), digits.size());
  const std::string_view whole = digits.substr(0, point);
  if (all_digits(whole) && (point == digits.size() || all_digits(digits.substr(point + 1)))) {
    if (is_typed_date) return read_iso(text, seconds);
    return read_number(whole, negative, point == digits.size() ? std::string_view() : digits.substr(point + 1), seconds);
  }
  return kind_ == Kind::automatic && read_iso(text, seconds);
}

bool TimeFormat::read(std::int64_t number, std::int64_t& seconds) const {
  if (kind_ == Kind::pattern) return read_pattern(std::to_string(number), seconds);
  if (kind_ == Kind::automatic && (number >= most_seconds || looks_like_date(number))) return false;
  seconds = floor_divide(number, per_second_);
  return within_bounds(seconds);
}

bool TimeFormat::are_seconds(const std::int64_t* numbers, std::size_t count) const {
  if (kind_ != Kind::automatic) return false;
  constexpr std::uint64_t range = most_seconds - first_second;
  constexpr std::int64_t first_date = first_year * 10000;
  constexpr std::uint64_t dates = (last_year + 1) * 10000 - first_date;
  bool are = true;  // no branch, so that the compiler generates vector instructions
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::uint64_t>(numbers[i]);
    are &= (number - static_cast<std::uint64_t>(first_second) < range) & (number - static_cast<std::uint64_t>(first_date) > dates);
  }
  return are;
}

bool TimeFormat::read(double number, std::int64_t& seconds) const {
  const double whole = std::floor(number);
  if (!(std::abs(whole) < 9.2e18) || (kind_ == Kind::pattern && whole != number)) return false;  // NaN is not either
  return read(static_cast<std::int64_t>(whole), seconds);
}

std::string TimeFormat::problem_of(std::string_view text) const {
  text = trimmed(text);
  const bool digits = is_number(text);
  const bool no_day = is_no_day(text);
  std::string what = quoted(text);
  if (!what.empty()) what += ' ';
  switch (kind_) {
    case Kind::automatic:
      what += no_day ? "has the digits of a date, YYYYMMDD" : digits ? "is most likely not a time in seconds since 1970" : text.empty() ? "is empty: there is no time" : "is neither a time in seconds since 1970 nor ISO 8601";
      break;
    case Kind::unit: what += "is not a number of " + text_ + " since 1970 in the years 1 to 9999, which timestamp_format requires"; break;
    case Kind::pattern: what += "is not written as timestamp_format '" + text_ + "'"; break;
  }
  if (no_day) {
    what += ", and is not a day of the calendar; correct it";
    // Without it, a column that counts from 0 could not be read; for declared dates, it would lead to times of 1970.
    return what + (kind_ == Kind::automatic ? ", or set the option timestamp_format='s' if the column counts seconds from 0" : "");
  }
  const std::string advice = advice_for(text);
  return what + "; " + (advice.empty() ? "correct it, or set the option timestamp_format to how times are written, such as '%d/%m/%Y %H:%M' or 'ms'" : advice);
}

std::string TimeFormat::advice_for(std::string_view text) const {
  if (is_no_day(text)) return {};  // The text is a mistake, and not a time of 1970.
  const bool digits = is_number(text);
  std::int64_t known = 0;
  const bool is_known = read(text, false, known);
  std::string advice;
  int num_named = 0;
  for (const TimeFormat& format : usual_formats()) {
    std::int64_t seconds = 0;
    if (num_named == 4 || format.text() == text_ || !format.read(text, false, seconds) || (is_known && seconds == known)) continue;
    if (digits && (year_of(seconds) < first_year || year_of(seconds) > last_year)) continue;
    if (format.kind_ == Kind::unit && format.per_second_ > 1 && seconds < 365 * day_s) continue;  // of a coarser unit
    advice += num_named++ > 0 ? ", or " : "";
    advice += (format.text().empty() ? "leave timestamp_format out" : "set the option timestamp_format='" + format.text() + "'") + " if it is " + show_time(seconds);
  }
  return advice;
}

std::string TimeFormat::problem_of(std::int64_t number) const { return problem_of(std::to_string(number)); }

std::string TimeFormat::problem_of(double number) const {
  std::array<char, 512> text{};
  if (!std::isfinite(number)) return "is not a finite number; correct it";
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed).ptr;
  return problem_of(std::string_view(text.data(), static_cast<std::size_t>(end - text.data())));
}

}  // namespace modyn
