// Hashes of strings that are equal in every version and on every machine, and the distinct strings of a column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace modyn {

// `size` strings one after the other: string i is the bytes [bounds[i], bounds[i + 1]) of `data`.
struct Strings {
  const std::int32_t* bounds;
  std::size_t size;
  const std::uint8_t* data;
};

// Throws InvalidArgument unless the bounds ascend from at least 0 to at most `num_bytes`.
void check_strings(const Strings& strings, std::size_t num_bytes);

// mix(sum of (byte + 1) · mix((place + 2) · gamma) + (size + 1) · 0xBF58476D1CE4E5B9), with the finalizer of SplitMix64 as `mix`.
std::uint64_t hash_string(const std::uint8_t* data, std::size_t size);

// Distinct strings in the order of first appearance.
struct DistinctStrings {
  std::vector<std::int64_t> rows;  // first row of each
  std::vector<std::uint64_t> hashes;
};

// Finds the distinct strings, and writes the number of each row's string to `codes`, of the same size; -1 for a missing string.
// valid: one bit per row from bit `first_bit` on, lowest bit of a byte first, 0 for a missing string; null: no string is missing.
DistinctStrings encode_strings(const Strings& strings, const std::uint8_t* valid, std::size_t first_bit, std::int64_t* codes);

}  // namespace modyn
