// Copying many small records that lie scattered in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace modyn {

// Copies record i, of the length that its bounds say, from address(i) to into + bounds[i], for i in [first, last); a null address leaves
// its place as it is. Owns nothing. Fetches records some turns ahead: what costs is waiting for memory, and waits for several records
// overlap. The order asked is the best one: sorting costs more than it saves (benchmark/gather.py).
template <typename Address>
void copy_records(const std::int64_t* bounds, std::uint8_t* into, std::size_t first, std::size_t last, const Address& address) {
  constexpr std::size_t ahead = 12;
  constexpr std::int64_t line = 64;
  constexpr std::int64_t most = 8 * line;  // of a longer record the processor fetches the rest by itself
  const auto fetch = [&](std::size_t i) {
    const std::uint8_t* const from = address(i);
    const std::int64_t length = bounds[i + 1] - bounds[i];
    if (from == nullptr || length == 0) return;
    for (std::int64_t at = 0; at < length && at < most; at += line) __builtin_prefetch(from + at);
    __builtin_prefetch(from + length - 1);
  };
  for (std::size_t i = first; i < last && i < first + ahead; ++i) fetch(i);
  for (std::size_t i = first; i < last; ++i) {
    if (i + ahead < last) fetch(i + ahead);
    const std::uint8_t* const from = address(i);
    if (from != nullptr) std::memcpy(into + bounds[i], from, static_cast<std::size_t>(bounds[i + 1] - bounds[i]));
  }
}

}  // namespace modyn
