// Many records from many files, or from memory, into one buffer, in the order asked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "modyn/file.hpp"
#include "modyn/path_table.hpp"

namespace modyn {

// n records; record i is `length(i)` bytes at offsets[i] of the file with id files[i]. Owns nothing. Duplicates and overlaps are fine.
struct GatherRequest {
  const PathTable& paths;
  const std::uint32_t* files;
  const std::int64_t* offsets;
  const std::int64_t* lengths;  // null: every record is fixed_length bytes
  std::int64_t fixed_length;
  std::size_t count;

  std::int64_t length(std::size_t i) const { return lengths == nullptr ? fixed_length : lengths[i]; }
};

// Bounds of the records in the buffer: bounds[i] is where record i begins, bounds[count] the size of the buffer. `bounds` has space
// for count + 1. Throws InvalidArgument if a record cannot exist (negative, beyond 2^63, no such file).
void gather_bounds(const GatherRequest& request, std::int64_t* bounds);

// Fills `into` (bounds[count] bytes) on at most `threads` threads. Small records of files that are in memory are copied from a map, in
// the order asked; all others are read in the order (file, offset), neighbours together. Throws FileError naming the record that cannot
// be read; `into` then holds nothing of use.
void gather(const GatherRequest& request, const std::int64_t* bounds, std::uint8_t* into, FileCache& files, std::size_t threads);

// Rows of a table of n records in memory: record r is data[bounds[r], bounds[r + 1]), or without bounds data[r * size, (r + 1) * size).
// Owns nothing.
struct TakeRequest {
  const std::uint8_t* data;
  std::int64_t data_size;
  const std::int64_t* bounds;  // null: every record is fixed_length bytes
  std::int64_t fixed_length;
  std::int64_t num_records;
  const std::int64_t* rows;
  std::size_t count;
};

// As gather_bounds and gather. Throws InvalidArgument if a row does not exist or bounds do not lie in the data.
void take_bounds(const TakeRequest& request, std::int64_t* bounds);
void take(const TakeRequest& request, const std::int64_t* bounds, std::uint8_t* into, std::size_t threads);

}  // namespace modyn
