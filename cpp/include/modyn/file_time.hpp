// Times of files as int64 nanoseconds since 1970.
#pragma once

#include <cstdint>
#include <ctime>
#include <limits>

namespace modyn {

// A time that does not fit, after 2262 or before 1677, becomes the last or first that does; never the least int64.
inline std::int64_t nanoseconds(const struct timespec& time) {
  constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t second = 1'000'000'000;
  if (time.tv_sec >= last / second) return last;
  if (time.tv_sec <= -(last / second)) return -last;
  return std::int64_t{time.tv_sec} * second + time.tv_nsec;
}

}  // namespace modyn
