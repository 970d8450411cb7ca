// Copying many numbers or small records from scattered memory in a given order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "modyn/errors.hpp"

namespace modyn {

// Copies record i, whose length its bounds give, from address(i) to into + bounds[i], for i in [first, last). A null address leaves its bytes
// unchanged. Owns nothing. Prefetches records some iterations ahead, so that waits for memory, which take most of the time, overlap. Sorting the
// records would cost more than it saves (benchmark/gather.py).
template <typename Address>
void copy_records(const std::int64_t* bounds, std::uint8_t* into, std::size_t first, std::size_t last, const Address& address) {
  constexpr std::size_t ahead = 12;
  constexpr std::int64_t line = 64;
  constexpr std::int64_t most = 8 * line;  // the processor prefetches the rest of a longer record
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

// into[i] = values[rows[i]]. Prefetches some iterations ahead, so that waits for memory overlap. Throws InvalidArgument for a row that does not
// exist; `into` is undefined then.
template <typename T>
void pick(const T* values, std::size_t num_values, const std::int64_t* rows, std::size_t count, T* into) {
  constexpr std::size_t ahead = 24;
  const auto exists = [num_values](std::int64_t row) { return static_cast<std::uint64_t>(row) < num_values; };
  for (std::size_t i = 0; i < count; ++i) {
    if (i + ahead < count && exists(rows[i + ahead])) __builtin_prefetch(values + rows[i + ahead]);
    if (!exists(rows[i])) {
      throw InvalidArgument("row " + std::to_string(rows[i]) + " does not exist: there are " + std::to_string(num_values));
    }
    into[i] = values[rows[i]];
  }
}

}  // namespace modyn
