#include <algorithm>
#include <atomic>

#include "gather_ways.hpp"
#include "modyn/copy.hpp"
#include "modyn/errors.hpp"
#include "modyn/guard.hpp"
#include "modyn/parallel.hpp"

namespace modyn {
namespace {

// Fewer records are read as fast, and a map of a file costs more than reading a few records of it.
constexpr std::size_t min_records = 32;
constexpr std::uint32_t min_records_per_file = 4;
// Longer records are read as fast.
constexpr std::int64_t max_mean_length = 32 << 10;
// Asking whether a record is in memory costs as much as copying thirty.
constexpr std::size_t records_per_question = 2048;
constexpr std::size_t min_questions = 4;

}  // namespace

MappedRecords::MappedRecords(const GatherRequest& request, const std::int64_t* bounds, FileCache& cache) : r_(request), bounds_(bounds) {
  const auto count = static_cast<std::int64_t>(r_.count);
  if (r_.count < min_records || bounds_[r_.count] / count > max_mean_length) return;
  find_files();
  // Files that cannot all be kept would be mapped anew for each request.
  if (files_.size() > cache.capacity() || r_.count / files_.size() < min_records_per_file) return;
  map_files(cache);
  if (any() && !are_resident()) num_mapped_ = 0;
}

// A small hash table from id to slot: ids are of any size, the files of a request usually few.
void MappedRecords::find_files() {
  constexpr std::uint32_t none = 0xffffffff;
  const auto [low, high] = std::minmax_element(r_.files, r_.files + r_.count);
  const std::size_t most_files = std::min<std::size_t>(r_.count, std::size_t{*high} - *low + 1);
  unsigned bits = 1;
  while ((std::size_t{1} << bits) < 2 * most_files) ++bits;
  std::vector<std::uint32_t> table(std::size_t{1} << bits, none);
  const std::size_t mask = table.size() - 1;
  const auto slot_of = [&](std::uint32_t id) {
    // Fibonacci hashing: neighbouring ids spread evenly.
    std::size_t place = static_cast<std::size_t>((id * 0x9e3779b97f4a7c15ULL) >> (64 - bits));
    for (; table[place] != none; place = (place + 1) & mask) {
      if (files_[table[place]].id == id) return table[place];
    }
    table[place] = static_cast<std::uint32_t>(files_.size());
    files_.push_back({id, 0, 0, nullptr, nullptr, {}});
    return table[place];
  };
  slots_.resize(r_.count);
  for (std::size_t i = 0; i < r_.count;) {
    const std::uint32_t id = r_.files[i];
    const std::uint32_t slot = slot_of(id);
    const std::size_t first = i;
    std::int64_t end = files_[slot].end;
    for (; i < r_.count && r_.files[i] == id; ++i) {
      slots_[i] = slot;
      end = std::max(end, r_.offsets[i] + r_.length(i));
    }
    files_[slot].records += static_cast<std::uint32_t>(i - first);
    files_[slot].end = end;
  }
}

void MappedRecords::map_files(FileCache& cache) {
  addresses_.resize(files_.size());
  for (std::size_t slot = 0; slot < files_.size(); ++slot) {
    RequestedFile& wanted = files_[slot];
    if (wanted.records < min_records_per_file) continue;
    try {
      wanted.indexed = r_.paths.file(wanted.id);
      wanted.file = cache.open(wanted.indexed.path);
      if (wanted.indexed.may_be(wanted.file->stamp_at_opening())) wanted.map = wanted.file->map(wanted.end);
    } catch (const FileError&) {
      // Reading comes to this file too, as to one that changed, and says which record is at fault.
    }
    if (!wanted.map) continue;
    addresses_[slot] = wanted.map->data();
    num_mapped_ += wanted.records;
  }
}

// Asks for a few records only. Where one has to come from a disk, others will too, and reading in order is better.
bool MappedRecords::are_resident() const {
  const std::size_t questions = std::min(r_.count, std::max(min_questions, r_.count / records_per_question));
  for (std::size_t question = 0; question < questions; ++question) {
    const std::size_t i = r_.count * question / questions;
    const RequestedFile& file = files_[slots_[i]];
    if (file.map && r_.length(i) > 0 && !file.file->is_resident(r_.offsets[i])) return false;
  }
  return true;
}

bool MappedRecords::copy(std::uint8_t* into, std::size_t threads) const {
  std::atomic<bool> whole{true};
  const auto address = [addresses = addresses_.data(), slots = slots_.data(), offsets = r_.offsets](std::size_t i) {
    const std::uint8_t* const begin = addresses[slots[i]];
    return begin == nullptr ? nullptr : begin + offsets[i];
  };
  parallel_blocks(r_.count, bounds_[r_.count], threads, [&](std::size_t first, std::size_t last) {
    auto run = [&] { copy_records(bounds_, into, first, last, address); };
    if (whole && !survives_bus_error(run)) whole = false;
  });
  return whole && are_still_as_indexed();
}

// Behind the end of a file that was cut, the rest of its last page reads as zeros, without a fault; and what was written while it was copied
// has changed the file's time before.
bool MappedRecords::are_still_as_indexed() const {
  try {
    return std::all_of(files_.begin(), files_.end(), [](const RequestedFile& wanted) {
      if (!wanted.map) return true;
      const FileStamp now = wanted.file->stamp();
      return now.size >= wanted.end && wanted.indexed.may_be(now);
    });
  } catch (const FileError&) {
    return false;  // reading meets the same, and says which record is at fault
  }
}

std::vector<std::uint32_t> MappedRecords::others() const {
  std::vector<std::uint32_t> positions;
  if (num_mapped_ == r_.count) return positions;
  positions.reserve(r_.count - num_mapped_);
  for (std::size_t i = 0; i < r_.count; ++i) {
    if (addresses_[slots_[i]] == nullptr) positions.push_back(static_cast<std::uint32_t>(i));
  }
  return positions;
}

}  // namespace modyn
