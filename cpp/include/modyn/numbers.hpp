// Labels and times from text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace modyn {

enum class Parsed { ok, not_a_number, out_of_range };

// A whole number, blanks around it and a leading + allowed.
Parsed parse_int64(std::string_view text, std::int64_t& value);
// A decimal number; also inf and nan.
Parsed parse_float64(std::string_view text, double& value);
// Whole seconds since 1970, or ISO 8601: YYYY-MM-DD, then optionally T or a blank, HH:MM[:SS[.fraction]] and Z or +HH:MM. Without a
// zone it is UTC; a fraction is cut off.
Parsed parse_timestamp(std::string_view text, std::int64_t& seconds);

// What is wrong with `text`, for a message: "'abc' is not a whole number".
std::string describe(Parsed problem, std::string_view text, std::string_view wanted);

}  // namespace modyn
