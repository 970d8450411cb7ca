// A checksum that detects damage at the speed of memory. It does not protect against attacks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace modyn {

// XXH64 with seed 0 (Yann Collet, xxHash specification 0.1.1) of bytes that are added in pieces. The result does not depend on the pieces or the
// machine. Owns nothing.
class Checksum {
 public:
  // `data` may be null if `size` is 0.
  void add(const void* data, std::size_t size);
  // Returns the checksum of all added bytes; more may be added afterwards.
  std::uint64_t value() const;

 private:
  static constexpr std::size_t stripe = 32;

  void add_stripes(const std::uint8_t* data, std::size_t count);

  std::array<std::uint64_t, 4> lanes_{0x60EA27EEADC0B5D6, 0xC2B2AE3D27D4EB4F, 0, 0x61C8864E7A143579};  // P1 + P2, P2, 0, -P1
  std::array<std::uint8_t, stripe> rest_{};  // bytes after the last whole stripe
  std::uint64_t size_ = 0;
};

}  // namespace modyn
