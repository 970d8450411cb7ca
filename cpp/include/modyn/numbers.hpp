// Labels and times from text. Each function returns what is wrong with the text, for a message, or nothing: "'abc' is not an int64 label".
// Blanks around a number and a leading + are allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace modyn {

// Reads a label: a whole number, or with `floats` the bits of a decimal one, which may be inf or nan. A whole number that float64 would round is
// none.
std::string parse_label(std::string_view text, bool floats, std::int64_t& label);
// Reads whole seconds since 1970, or ISO 8601: YYYY-MM-DD, then optionally T or a blank, HH:MM[:SS[.fraction]] and Z or +HH:MM. Without a
// zone it is UTC; a fraction is cut off.
std::string parse_timestamp(std::string_view text, std::int64_t& seconds);

}  // namespace modyn
