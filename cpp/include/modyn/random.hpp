// Random numbers that are equal on every machine.
#pragma once

#include <array>
#include <cstdint>

namespace modyn {

using Seed = std::array<std::uint64_t, 4>;

// xoshiro256++ 1.0 (Blackman and Vigna 2019). The seed must not be all zero.
class Random {
 public:
  explicit Random(const Seed& seed) : state_(seed) {}

  std::uint64_t next() {
    const std::uint64_t result = rotated(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotated(state_[3], 45);
    return result;
  }

  // Uniform below `bound`: the upper half of a product, drawn again if the lower half shows a bias (Lemire 2019).
  std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = (next() >> 32) * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t least = (0U - bound) % bound;
      while (static_cast<std::uint32_t>(product) < least) product = (next() >> 32) * bound;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

  // Uniform in [0, 1), one of 2^53 numbers.
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  static std::uint64_t rotated(std::uint64_t value, unsigned by) { return (value << by) | (value >> (64 - by)); }

  Seed state_;
};

}  // namespace modyn
