// Properties of text bytes.
#pragma once

#include <cstddef>
#include <string_view>

namespace modyn {

// The byte order mark of UTF-8 at the beginning of a file. It is not part of the text.
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

// Returns whether all bytes are ASCII, and none is NUL.
bool is_plain_ascii(std::string_view text);
// Returns the first byte that is not part of a UTF-8 character, or the size of the text if there is none.
std::size_t first_not_utf8(std::string_view text);

}  // namespace modyn
