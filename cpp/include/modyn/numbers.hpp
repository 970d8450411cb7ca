// Reads labels from text. Blanks around a number and a leading + are allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace modyn {

// Reads a label: a whole number, or with `floats` the bits of a decimal number, which may be inf or nan. A whole number that float64 would round
// is not a label. Returns what is wrong with the text, for a message ("'abc' is not an int64 label"), or nothing.
std::string parse_label(std::string_view text, bool floats, std::int64_t& label);

}  // namespace modyn
