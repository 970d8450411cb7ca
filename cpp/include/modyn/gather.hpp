// Many records from many files into one buffer, in the order asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "modyn/file.hpp"

namespace modyn {

// n records; record i is `length(i)` bytes at offsets[i] of paths[files[i]]. Owns nothing. Duplicates and overlaps are fine.
struct GatherRequest {
  const std::vector<std::string>& paths;
  const std::uint32_t* files;
  const std::int64_t* offsets;
  const std::int64_t* lengths;  // null: every record is fixed_length bytes
  std::int64_t fixed_length;
  std::size_t count;

  std::int64_t length(std::size_t i) const { return lengths == nullptr ? fixed_length : lengths[i]; }
};

// Bounds of the records in the buffer: bounds[i] is where record i begins, bounds[count] the size of the buffer. `bounds` has space
// for count + 1. Throws InvalidArgument if a record cannot exist (negative, beyond 2^63, no such path).
void gather_bounds(const GatherRequest& request, std::int64_t* bounds);

// Fills `into` (bounds[count] bytes) on at most `threads` threads. Reads are made in the order (file, offset), and neighbours are read
// together. Throws FileError naming the record that cannot be read; `into` then holds nothing of use.
void gather(const GatherRequest& request, const std::int64_t* bounds, std::uint8_t* into, FileCache& files, std::size_t threads);

}  // namespace modyn
