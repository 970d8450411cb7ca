#include "modyn/strings.hpp"

#include <array>
#include <cstring>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

constexpr std::uint64_t gamma = 0x9E3779B97F4A7C15, first = 0xBF58476D1CE4E5B9, second = 0x94D049BB133111EB;
constexpr std::size_t num_known = 64;

constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * first;
  value = (value ^ (value >> 27)) * second;
  return value ^ (value >> 31);
}

constexpr std::uint64_t multiplier(std::size_t place) { return mix((place + 2) * gamma); }

constexpr std::array<std::uint64_t, num_known> known_multipliers() {
  std::array<std::uint64_t, num_known> found{};
  for (std::size_t place = 0; place < num_known; ++place) found[place] = multiplier(place);
  return found;
}

constexpr auto multipliers = known_multipliers();

std::size_t power_of_two(std::size_t least) {
  std::size_t size = 16;
  while (size < least) size *= 2;
  return size;
}

}  // namespace

void check_strings(const Strings& strings, std::size_t num_bytes) {
  std::int64_t before = 0;
  for (std::size_t at = 0; at <= strings.size; ++at) {
    if (strings.bounds[at] < before) throw InvalidArgument("the bounds of strings must ascend from 0 or more");
    before = strings.bounds[at];
  }
  if (static_cast<std::size_t>(before) > num_bytes) throw InvalidArgument("the bounds of strings exceed their bytes");
}

std::uint64_t hash_string(const std::uint8_t* data, std::size_t size) {
  std::uint64_t sum = (size + 1) * first;
  const std::size_t known = size < num_known ? size : num_known;
  for (std::size_t place = 0; place < known; ++place) sum += (data[place] + std::uint64_t{1}) * multipliers[place];
  for (std::size_t place = known; place < size; ++place) sum += (data[place] + std::uint64_t{1}) * multiplier(place);
  return mix(sum);
}

DistinctStrings encode_strings(const Strings& strings, const std::uint8_t* valid, std::size_t first_bit, std::int64_t* codes) {
  DistinctStrings distinct;
  // Open addressing; at most half of the slots are used. 0: free, else 1 + the number of the string.
  std::vector<std::uint32_t> slots(power_of_two(2 * strings.size));
  const std::size_t mask = slots.size() - 1;
  for (std::size_t row = 0; row < strings.size; ++row) {
    const std::size_t bit = first_bit + row;
    if (valid != nullptr && (valid[bit / 8] >> (bit % 8) & 1) == 0) {
      codes[row] = -1;
      continue;
    }
    const std::uint8_t* const data = strings.data + strings.bounds[row];
    const auto size = static_cast<std::size_t>(strings.bounds[row + 1] - strings.bounds[row]);
    const std::uint64_t hash = hash_string(data, size);
    std::size_t slot = hash & mask;
    for (; slots[slot] != 0; slot = (slot + 1) & mask) {
      const std::size_t number = slots[slot] - 1;
      if (distinct.hashes[number] != hash) continue;
      const auto other = static_cast<std::size_t>(distinct.rows[number]);
      if (static_cast<std::size_t>(strings.bounds[other + 1] - strings.bounds[other]) != size) continue;
      if (size == 0 || std::memcmp(strings.data + strings.bounds[other], data, size) == 0) break;
    }
    if (slots[slot] == 0) {
      distinct.rows.push_back(static_cast<std::int64_t>(row));
      distinct.hashes.push_back(hash);
      slots[slot] = static_cast<std::uint32_t>(distinct.rows.size());
    }
    codes[row] = slots[slot] - std::int64_t{1};
  }
  return distinct;
}

}  // namespace modyn
