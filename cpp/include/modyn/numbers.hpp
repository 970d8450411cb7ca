// Labels from text. Blanks around a number and a leading + are allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace modyn {

// Reads a label: a whole number, or with `floats` the bits of a decimal one, which may be inf or nan. A whole number that float64 would round is
// none. Returns what is wrong with the text, for a message, or nothing: "'abc' is not an int64 label".
std::string parse_label(std::string_view text, bool floats, std::int64_t& label);

}  // namespace modyn
