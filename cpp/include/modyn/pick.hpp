// Numbers from all over an array, in the order asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "modyn/errors.hpp"

namespace modyn {

// into[i] = values[rows[i]]. Fetches some turns ahead, so that the waits for memory overlap. Throws InvalidArgument for a row that does not
// exist; then `into` means nothing.
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
