#include "modyn/gather.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gather_ways.hpp"
#include "modyn/copy.hpp"
#include "modyn/errors.hpp"
#include "modyn/parallel.hpp"

namespace modyn {
namespace {

constexpr auto limit = std::numeric_limits<std::int64_t>::max();

void check_count(std::size_t count) {
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    throw InvalidArgument("at most 2^32 - 1 records can be gathered at once, not " + std::to_string(count));
  }
}

// Whether all records have one length and none is at fault: found without a look at them one by one.
bool are_plain_rows(const GatherRequest& r, std::size_t num_files) {
  if (r.lengths != nullptr || r.fixed_length < 0 || r.fixed_length > limit / static_cast<std::int64_t>(std::max<std::size_t>(r.count, 1))) {
    return false;
  }
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::uint32_t file = 0;
  for (std::size_t i = 0; i < r.count; ++i) {
    low = std::min(low, r.offsets[i]);
    high = std::max(high, r.offsets[i]);
    file = std::max(file, r.files[i]);
  }
  return low == 0 && high <= limit - r.fixed_length && (r.count == 0 || file < num_files);
}

void fill_bounds(std::int64_t* bounds, std::size_t count, std::int64_t length) {
  for (std::size_t i = 0; i <= count; ++i) bounds[i] = static_cast<std::int64_t>(i) * length;
}

std::vector<std::uint32_t> all_positions(std::size_t count) {
  std::vector<std::uint32_t> positions(count);
  std::iota(positions.begin(), positions.end(), 0U);
  return positions;
}

}  // namespace

void gather_bounds(const GatherRequest& r, std::int64_t* bounds) {
  check_count(r.count);
  const std::size_t num_files = r.paths.size();
  if (are_plain_rows(r, num_files)) return fill_bounds(bounds, r.count, r.fixed_length);
  bounds[0] = 0;
  for (std::size_t i = 0; i < r.count; ++i) {
    const std::int64_t length = r.length(i);
    if (length < 0 || r.offsets[i] < 0 || r.offsets[i] > limit - length || bounds[i] > limit - length) {
      throw InvalidArgument("record " + std::to_string(i) + " cannot exist: " + std::to_string(length) + " bytes at byte " +
                            std::to_string(r.offsets[i]));
    }
    if (r.files[i] >= num_files) {
      throw InvalidArgument("record " + std::to_string(i) + " names file " + std::to_string(r.files[i]) + " of " + std::to_string(num_files));
    }
    bounds[i + 1] = bounds[i] + length;
  }
}

void gather(const GatherRequest& request, const std::int64_t* bounds, std::uint8_t* into, FileCache& files, std::size_t threads) {
  if (request.count == 0) return;
  const MappedRecords mapped(request, bounds, files);
  if (mapped.any() && mapped.copy(into, threads)) return read_records(request, mapped.others(), bounds, into, files, threads);
  // Also where a map failed: reading gives the records, or the error that names the missing one.
  read_records(request, all_positions(request.count), bounds, into, files, threads);
}

void take_bounds(const TakeRequest& r, std::int64_t* bounds) {
  constexpr std::size_t ahead = 16;
  check_count(r.count);
  const auto check_row = [&r](std::size_t i) {
    if (r.rows[i] < 0 || r.rows[i] >= r.num_records) {
      throw InvalidArgument("row " + std::to_string(r.rows[i]) + " does not exist: there are " + std::to_string(r.num_records));
    }
  };
  if (r.bounds == nullptr) {
    if (r.fixed_length < 0 || (r.count > 0 && r.fixed_length > limit / static_cast<std::int64_t>(r.count))) {
      throw InvalidArgument("rows cannot have " + std::to_string(r.fixed_length) + " bytes");
    }
    for (std::size_t i = 0; i < r.count; ++i) check_row(i);
    return fill_bounds(bounds, r.count, r.fixed_length);
  }
  bounds[0] = 0;
  for (std::size_t i = 0; i < r.count; ++i) {
    check_row(i);
    if (i + ahead < r.count && r.rows[i + ahead] >= 0 && r.rows[i + ahead] < r.num_records) __builtin_prefetch(r.bounds + r.rows[i + ahead]);
    const std::int64_t begin = r.bounds[r.rows[i]];
    const std::int64_t end = r.bounds[r.rows[i] + 1];
    if (begin < 0 || end < begin || end > r.data_size || bounds[i] > limit - (end - begin)) {
      throw InvalidArgument("row " + std::to_string(r.rows[i]) + " is said to be bytes " + std::to_string(begin) + " to " +
                            std::to_string(end) + " of " + std::to_string(r.data_size));
    }
    bounds[i + 1] = bounds[i] + (end - begin);
  }
}

void take(const TakeRequest& r, const std::int64_t* bounds, std::uint8_t* into, std::size_t threads) {
  const auto address = [&r](std::size_t i) { return r.data + (r.bounds == nullptr ? r.rows[i] * r.fixed_length : r.bounds[r.rows[i]]); };
  parallel_blocks(r.count, bounds[r.count], threads,
                  [&](std::size_t first, std::size_t last) { copy_records(bounds, into, first, last, address); });
}

}  // namespace modyn
