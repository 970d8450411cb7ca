#include "modyn/text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace modyn {
namespace {

constexpr std::uint64_t high_bits = 0x8080808080808080;

// Number of bytes of the first character of `text`, which is not empty; 0 if the character is not valid. RFC 3629 allows only the shortest form,
// and no surrogates.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (size == 0 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool is_wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
                        (first == 0xF4 && second > 0x8F);
  return is_wrong ? 0 : size;
}

std::uint64_t eight_bytes(const char* from) {
  std::uint64_t found;
  std::memcpy(&found, from, sizeof(found));
  return found;
}

}  // namespace

bool is_plain_ascii(std::string_view text) {
  // For an ASCII byte that is not NUL, this sum sets the high bit and carries nothing.
  constexpr std::uint64_t most_ascii = 0x7F7F7F7F7F7F7F7F;
  std::uint64_t any = 0;
  std::uint64_t all = high_bits;
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    const std::uint64_t bytes = eight_bytes(text.data() + at);
    any |= bytes;
    all &= bytes + most_ascii;
  }
  if ((any & high_bits) != 0 || all != high_bits) return false;
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), [](char c) { return c > 0; });
}

std::size_t first_not_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (at + 8 <= text.size() && (eight_bytes(text.data() + at) & high_bits) == 0) {
      at += 8;
      continue;
    }
    const std::size_t size = character(text.substr(at));
    if (size == 0) return at;
    at += size;
  }
  return text.size();
}

}  // namespace modyn
