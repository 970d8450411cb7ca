#include "modyn/numbers.hpp"

#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>

#include "modyn/times.hpp"

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
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);  // from_chars does not accept a plus sign
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) return Parsed::not_a_number;
  if (error == std::errc::result_out_of_range) return Parsed::out_of_range;
  return error == std::errc{} ? Parsed::ok : Parsed::not_a_number;
}

std::string describe(Parsed parsed, std::string_view text, const char* wanted) {
  if (parsed == Parsed::ok) return {};
  const std::string value = quoted(trimmed(text));
  return value + (value.empty() ? "" : " ") + (parsed == Parsed::out_of_range ? "is out of the range of " : "is not ") + wanted;
}

// Returns whether the whole number `text` differs from `value`, the nearest float64. Beyond 2^53, most numbers do.
bool is_rounded(std::string_view text, double value) {
  if (std::fabs(value) < 9007199254740992.0) return false;
  text = trimmed(text);
  const auto first = text.find_first_of("123456789");
  if (first == std::string_view::npos || text.find_first_not_of("0123456789", first) != std::string_view::npos) return false;
  char exact[400];  // the largest float64 has 309 digits
  const auto end = std::to_chars(exact, exact + sizeof(exact), std::fabs(value), std::chars_format::fixed).ptr;
  return text.substr(first) != std::string_view(exact, static_cast<std::size_t>(end - exact));
}

}  // namespace

std::string parse_label(std::string_view text, bool floats, std::int64_t& label) {
  if (!floats) return describe(parse_number(text, label), text, "an int64 label");
  double value = 0;
  const Parsed parsed = parse_number(text, value);
  std::memcpy(&label, &value, sizeof(label));
  if (parsed == Parsed::ok && is_rounded(text, value)) {
    return quoted(trimmed(text)) + " is a whole number that no float64 is: it would be rounded; set label_type to int";
  }
  return describe(parsed, text, "a float64 label");
}

}  // namespace modyn
