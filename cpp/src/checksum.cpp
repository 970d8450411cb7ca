#include "modyn/checksum.hpp"

#include <algorithm>
#include <cstring>

namespace modyn {
namespace {

constexpr std::uint64_t p1 = 0x9E3779B185EBCA87, p2 = 0xC2B2AE3D27D4EB4F, p3 = 0x165667B19E3779F9, p4 = 0x85EBCA77C2B2AE63,
                        p5 = 0x27D4EB2F165667C5;

std::uint64_t rotated(std::uint64_t value, unsigned by) { return (value << by) | (value >> (64 - by)); }

std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) { return rotated(lane + word * p2, 31) * p1; }

// Reads bytes as a little-endian number.
template <typename Word>
std::uint64_t word_at(const std::uint8_t* data) {
  Word word;
  std::memcpy(&word, data, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = sizeof(word) == 8 ? static_cast<Word>(__builtin_bswap64(word)) : static_cast<Word>(__builtin_bswap32(static_cast<std::uint32_t>(word)));
#endif
  return word;
}

}  // namespace

void Checksum::add(const void* data, std::size_t size) {
  if (size == 0) return;
  const auto* from = static_cast<const std::uint8_t*>(data);
  const std::size_t held = size_ % stripe;
  size_ += size;
  if (held > 0) {
    const std::size_t more = std::min(stripe - held, size);
    std::memcpy(rest_.data() + held, from, more);
    from += more;
    size -= more;
    if (held + more < stripe) return;
    add_stripes(rest_.data(), 1);
  }
  add_stripes(from, size / stripe);
  if (size % stripe > 0) std::memcpy(rest_.data(), from + (size - size % stripe), size % stripe);
}

void Checksum::add_stripes(const std::uint8_t* data, std::size_t count) {
  auto [a, b, c, d] = lanes_;  // in registers
  for (const std::uint8_t* const end = data + count * stripe; data != end; data += stripe) {
    a = mixed(a, word_at<std::uint64_t>(data));
    b = mixed(b, word_at<std::uint64_t>(data + 8));
    c = mixed(c, word_at<std::uint64_t>(data + 16));
    d = mixed(d, word_at<std::uint64_t>(data + 24));
  }
  lanes_ = {a, b, c, d};
}

std::uint64_t Checksum::value() const {
  std::uint64_t sum = p5;
  if (size_ >= stripe) {
    sum = rotated(lanes_[0], 1) + rotated(lanes_[1], 7) + rotated(lanes_[2], 12) + rotated(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) sum = (sum ^ mixed(0, lane)) * p1 + p4;
  }
  sum += size_;
  const std::uint8_t* from = rest_.data();
  const std::uint8_t* const end = from + size_ % stripe;
  for (; end - from >= 8; from += 8) sum = rotated(sum ^ mixed(0, word_at<std::uint64_t>(from)), 27) * p1 + p4;
  for (; end - from >= 4; from += 4) sum = rotated(sum ^ word_at<std::uint32_t>(from) * p1, 23) * p2 + p3;
  for (; from != end; ++from) sum = rotated(sum ^ *from * p5, 11) * p1;
  sum = (sum ^ sum >> 33) * p2;
  sum = (sum ^ sum >> 29) * p3;
  return sum ^ sum >> 32;
}

}  // namespace modyn
