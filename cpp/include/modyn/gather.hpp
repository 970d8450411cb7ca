// Copies many records from many files, or from memory, into one buffer in a given order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "modyn/file.hpp"
#include "modyn/path_table.hpp"

namespace modyn {

// n records. Record i is `length(i)` bytes at offsets[i] of the file with id files[i]. Owns nothing. Duplicates and overlaps are allowed.
struct GatherRequest {
  const PathTable& paths;
  const std::uint32_t* files;
  const std::int64_t* offsets;
  const std::int64_t* lengths;  // null: every record is fixed_length bytes
  std::int64_t fixed_length;
  std::size_t count;

  std::int64_t length(std::size_t i) const { return lengths == nullptr ? fixed_length : lengths[i]; }
};

// Computes the bounds of the records in the buffer: record i begins at bounds[i], and bounds[count] is the size of the buffer. `bounds` has
// space for count + 1. Throws InvalidArgument if a record cannot exist (negative, beyond 2^63, no such file).
void gather_bounds(const GatherRequest& request, std::int64_t* bounds);

// Fills `into` (bounds[count] bytes) with at most `threads` threads. Small records of files in memory are copied from a map in the given order.
// All others are read in the order (file, offset), adjacent records together. Throws FileError that names the unreadable record; `into` is undefined
// then.
void gather(const GatherRequest& request, const std::int64_t* bounds, std::uint8_t* into, FileCache& files, std::size_t threads);

// Rows of a table of n records in memory: record r is data[bounds[r], bounds[r + 1]), or without bounds data[r * size, (r + 1) * size). Owns
// nothing.
struct TakeRequest {
  const std::uint8_t* data;
  std::int64_t data_size;
  const std::int64_t* bounds;  // null: every record is fixed_length bytes
  std::int64_t fixed_length;
  std::int64_t num_records;
  const std::int64_t* rows;
  std::size_t count;
};

// Like gather_bounds and gather. Throws InvalidArgument if a row does not exist or bounds are outside of the data.
void take_bounds(const TakeRequest& request, std::int64_t* bounds);
void take(const TakeRequest& request, const std::int64_t* bounds, std::uint8_t* into, std::size_t threads);

}  // namespace modyn
