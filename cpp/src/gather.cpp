#include "modyn/gather.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gather_read.hpp"
#include "modyn/copy.hpp"
#include "modyn/errors.hpp"
#include "modyn/guard.hpp"
#include "modyn/parallel.hpp"

namespace modyn {
namespace {

constexpr auto limit = std::numeric_limits<std::int64_t>::max();
// With fewer records, reading is as fast as copying from a map; for a few records, mapping a file costs more.
constexpr std::size_t min_records = 32;
constexpr std::uint32_t min_records_per_file = 4;
// For longer records, reading is as fast as copying from a map.
constexpr std::int64_t max_mean_length = 32 << 10;
// Checking whether a record is in memory costs as much as copying thirty records.
constexpr std::size_t records_per_question = 2048;
constexpr std::size_t min_questions = 4;

void check_count(std::size_t count) {
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    throw InvalidArgument("at most 2^32 - 1 records can be gathered at once, not " + std::to_string(count));
  }
}

// Returns whether all records have one length and are valid, if this is known without checking each.
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

// Copies records of a request from maps of their files, if this is faster than reading.
class MappedRecords {
 public:
  // Chooses the files to map: files in memory with several small records. There may be none.
  MappedRecords(const GatherRequest& request, const std::int64_t* bounds, FileCache& cache) : r_(request), bounds_(bounds) {
    const auto count = static_cast<std::int64_t>(r_.count);
    if (r_.count < min_records || bounds_[r_.count] / count > max_mean_length) return;
    find_files();
    // If not all files can be kept open, they would be mapped again for each request.
    if (files_.size() > cache.capacity() || r_.count / files_.size() < min_records_per_file) return;
    map_files(cache);
    if (!are_resident()) num_mapped_ = 0;
  }

  // Copies the records of mapped files. If a file was truncated or changed meanwhile, no file counts as mapped any more: the records are then
  // read, which succeeds or throws the error that names the missing record.
  void copy(std::uint8_t* into, std::size_t threads) {
    if (num_mapped_ == 0) return;
    std::atomic<bool> whole{true};
    const auto address = [addresses = addresses_.data(), slots = slots_.data(), offsets = r_.offsets](std::size_t i) {
      const std::uint8_t* const begin = addresses[slots[i]];
      return begin == nullptr ? nullptr : begin + offsets[i];
    };
    parallel_blocks(r_.count, bounds_[r_.count], threads, [&](std::size_t first, std::size_t last) {
      auto run = [&] { copy_records(bounds_, into, first, last, address); };
      if (whole && !survives_bus_error(run)) whole = false;
    });
    if (!whole || !are_still_as_indexed()) num_mapped_ = 0;
  }

  // Positions of the records that are not in mapped files.
  std::vector<std::uint32_t> others() const {
    if (num_mapped_ == r_.count) return {};
    std::vector<std::uint32_t> positions(r_.count);
    std::iota(positions.begin(), positions.end(), 0U);
    const auto is_copied = [this](std::uint32_t i) { return num_mapped_ > 0 && addresses_[slots_[i]] != nullptr; };
    positions.erase(std::remove_if(positions.begin(), positions.end(), is_copied), positions.end());
    return positions;
  }

 private:
  // A file of the request. Its number is its slot.
  struct RequestedFile {
    std::uint32_t id;
    std::uint32_t records = 0;
    std::int64_t end = 0;  // end of the farthest record
    std::shared_ptr<const File> file{};
    std::shared_ptr<const std::uint8_t> map{};
    IndexedFile indexed{};
  };

  // A small hash table from id to slot: ids may be any number, and a request usually has few files.
  void find_files() {
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
      files_.push_back({id});
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

  void map_files(FileCache& cache) {
    addresses_.resize(files_.size());
    for (std::size_t slot = 0; slot < files_.size(); ++slot) {
      RequestedFile& wanted = files_[slot];
      if (wanted.records < min_records_per_file) continue;
      try {
        wanted.indexed = r_.paths.file(wanted.id);
        wanted.file = cache.open(wanted.indexed.source(), !wanted.indexed.copy.empty());
        if (wanted.indexed.may_be(wanted.file->stamp_at_opening())) wanted.map = wanted.file->map(wanted.end);
      } catch (const FileError&) {
        // The file counts as changed. Reading it later throws an error that names the failing record.
      }
      if (!wanted.map) continue;
      addresses_[slot] = wanted.map.get();
      num_mapped_ += wanted.records;
    }
  }

  // Checks only a few records. If one record is not in memory, others are not either, and reading in order is faster.
  bool are_resident() const {
    const std::size_t questions = std::min(r_.count, std::max(min_questions, r_.count / records_per_question));
    for (std::size_t question = 0; question < questions; ++question) {
      const std::size_t i = r_.count * question / questions;
      const RequestedFile& file = files_[slots_[i]];
      if (file.map && r_.length(i) > 0 && !file.file->is_resident(r_.offsets[i])) return false;
    }
    return true;
  }

  // After the end of a truncated file, the rest of its last page reads as zeros without a fault. A write during the copy changed the file's
  // time first, so this check finds it.
  bool are_still_as_indexed() const {
    try {
      return std::all_of(files_.begin(), files_.end(), [](const RequestedFile& wanted) {
        if (!wanted.map) return true;
        const FileStamp now = wanted.file->stamp();
        return now.size >= wanted.end && wanted.indexed.may_be(now);
      });
    } catch (const FileError&) {
      return false;  // reading then fails too, and its error names the record
    }
  }

  const GatherRequest& r_;
  const std::int64_t* bounds_;
  std::vector<std::uint32_t> slots_;  // of each record
  std::vector<RequestedFile> files_;
  std::vector<const std::uint8_t*> addresses_;  // map of each slot; null: not mapped
  std::size_t num_mapped_ = 0;                  // records
};

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
  MappedRecords mapped(request, bounds, files);
  mapped.copy(into, threads);
  read_records(request, mapped.others(), bounds, into, files, threads);
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
