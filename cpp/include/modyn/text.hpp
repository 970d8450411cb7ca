// What bytes of text are.
#pragma once

#include <cstddef>
#include <string_view>

namespace modyn {

// Of UTF-8, at the beginning of a file: no part of the text.
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

// Whether all bytes are ASCII, and none is NUL.
bool is_plain_ascii(std::string_view text);
// The first byte that is no part of a character in UTF-8; the size of the text if there is none.
std::size_t first_not_utf8(std::string_view text);

}  // namespace modyn
