// Reads records that are not in memory, are large, or are among few requested records of their file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "modyn/gather.hpp"

namespace modyn {

// Reads the records at `positions` (ascending) of the request by pread, sorted and merged.
void read_records(const GatherRequest& request, std::vector<std::uint32_t> positions, const std::int64_t* bounds, std::uint8_t* into,
                  FileCache& cache, std::size_t threads);

}  // namespace modyn
