#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "gather_read.hpp"
#include "modyn/errors.hpp"
#include "modyn/parallel.hpp"

namespace modyn {
namespace {

// Reading this number of additional bytes costs less than another system call.
constexpr std::int64_t max_gap = 4096;
// Largest number of bytes that are read at once through a thread's scratch space.
constexpr std::int64_t max_run = 1 << 20;
// Opening and reading a file takes as long as copying this number of bytes.
constexpr std::int64_t cost_of_record = 4096;

// A write to a file sets its time before its size, and the writer may be suspended in between. A reader that sees such a state waits several
// times, twice as long each time, and at most a second in total.
constexpr auto first_wait = std::chrono::milliseconds(1);
constexpr auto last_wait = std::chrono::milliseconds(512);

// Returns whether `file`, whose current stamp is `now`, still has the indexed content. Sets `now` to the stamp at the end of the check.
bool is_as_indexed(const IndexedFile& indexed, const File& file, FileStamp& now) {
  for (auto wait = first_wait; !indexed.may_be(now); wait *= 2) {
    if (wait > last_wait || !indexed.may_grow || now.size != indexed.stamp->size) return false;
    std::this_thread::sleep_for(wait);
    now = file.stamp();
  }
  return true;
}

unsigned bits_for(std::uint64_t value) { return value == 0 ? 0 : 64 - static_cast<unsigned>(__builtin_clzll(value)); }

// Least-significant-digit radix sort of `keys` by the bits [low, high).
void radix_sort(std::vector<std::uint64_t>& keys, unsigned low, unsigned high) {
  constexpr unsigned digit_bits = 11;
  std::vector<std::uint64_t> other(keys.size());
  for (unsigned shift = low; shift < high; shift += digit_bits) {
    const std::uint64_t mask = (1U << std::min(digit_bits, high - shift)) - 1;
    std::array<std::size_t, 1U << digit_bits> starts{};
    for (const auto key : keys) ++starts[(key >> shift) & mask];
    std::size_t sum = 0;
    for (auto& start : starts) sum += std::exchange(start, sum);
    for (const auto key : keys) other[starts[(key >> shift) & mask]++] = key;
    keys.swap(other);
  }
}

// Sorts ascending positions by (file, offset, position).
void sort_for_reading(const GatherRequest& r, std::vector<std::uint32_t>& positions) {
  const auto comes_first = [&r](auto a, auto b) { return r.files[a] != r.files[b] ? r.files[a] < r.files[b] : r.offsets[a] < r.offsets[b]; };
  if (std::is_sorted(positions.begin(), positions.end(), comes_first)) return;
  std::uint32_t max_file = 0;
  std::int64_t max_offset = 0;
  for (const auto i : positions) {
    max_file = std::max(max_file, r.files[i]);
    max_offset = std::max(max_offset, r.offsets[i]);
  }
  const unsigned position_bits = bits_for(positions.back());
  const unsigned offset_bits = bits_for(static_cast<std::uint64_t>(max_offset));
  const unsigned all_bits = position_bits + offset_bits + bits_for(max_file);
  if (all_bits > 64) return std::stable_sort(positions.begin(), positions.end(), comes_first);
  // The usual case: file, offset and position fit into one number, and numbers sort fast.
  std::vector<std::uint64_t> keys(positions.size());
  std::transform(positions.begin(), positions.end(), keys.begin(), [&](auto i) {
    const auto file = offset_bits + position_bits < 64 ? std::uint64_t{r.files[i]} << (offset_bits + position_bits) : 0;
    return file | static_cast<std::uint64_t>(r.offsets[i]) << position_bits | i;
  });
  radix_sort(keys, position_bits, all_bits);
  const std::uint64_t mask = (std::uint64_t{1} << position_bits) - 1;
  std::transform(keys.begin(), keys.end(), positions.begin(), [mask](auto key) { return static_cast<std::uint32_t>(key & mask); });
}

// Reads the records at ranks [first, last) of the reading order.
class BlockReader {
 public:
  BlockReader(const GatherRequest& request, const std::vector<std::uint32_t>& order, const std::int64_t* bounds, std::uint8_t* into,
              FileCache& cache)
      : r_(request), order_(order), bounds_(bounds), into_(into), cache_(cache) {}

  void read(std::size_t first, std::size_t last) {
    while (first < last) {
      const Run run = next_run(first, last);
      if (run.end > run.begin) read_run(first, run);
      first = run.last;
    }
    check_what_was_read();
  }

 private:
  // Reads the records at ranks [first, last), all within bytes [begin, end) of one file. direct: the buffer holds them exactly as the file does.
  struct Run {
    std::size_t last;
    std::int64_t begin;
    std::int64_t end;
    bool direct;
  };

  std::size_t at(std::size_t rank) const { return order_[rank]; }
  // Uses the bounds, which no other thread can change: nothing is written beyond the buffer even if the caller's arrays change meanwhile.
  std::int64_t length(std::size_t i) const { return bounds_[i + 1] - bounds_[i]; }

  Run next_run(std::size_t first, std::size_t last) const {
    const std::size_t head = at(first);
    Run run{first + 1, r_.offsets[head], r_.offsets[head] + length(head), true};
    for (; run.last < last; ++run.last) {
      const std::size_t i = at(run.last);
      const std::int64_t begin = r_.offsets[i];
      const std::int64_t end = std::max(run.end, begin + length(i));
      if (r_.files[i] != r_.files[head] || begin - run.end > max_gap) break;
      const bool direct = run.direct && begin == run.end && bounds_[i] - bounds_[head] == begin - run.begin;
      if (!direct && end - run.begin > max_run) break;
      run.direct = direct;
      run.end = end;
    }
    return run;
  }

  void read_run(std::size_t first, const Run& run) {
    const std::size_t head = at(first);
    if (!file_ || file_id_ != r_.files[head]) open(head);
    const auto size = static_cast<std::size_t>(run.end - run.begin);
    if (!run.direct && scratch_size_ < size) scratch_.reset(new std::uint8_t[scratch_size_ = size]);  // not zeroed: it is read over
    std::uint8_t* const target = run.direct ? into_ + bounds_[head] : scratch_.get();
    std::size_t got = 0;
    try {
      got = read_some(head, target, size, run.begin);
    } catch (const FileError&) {
      if (run.last == first + 1) throw;
      // The unreadable part may be a record of the run, or a gap between records.
      for (std::size_t rank = first; rank < run.last; ++rank) read_run(rank, next_run(rank, rank + 1));
      return;
    }
    if (got < size) throw_truncated(first, run, static_cast<std::int64_t>(got));
    if (run.direct) return;
    for (std::size_t rank = first; rank < run.last; ++rank) {
      const std::size_t i = at(rank);
      std::memcpy(into_ + bounds_[i], target + (r_.offsets[i] - run.begin), static_cast<std::size_t>(length(i)));
    }
  }

  // Returns the result of `call`. Its errors name record i.
  template <typename Call>
  auto naming(std::size_t i, const Call& call) const {
    try {
      return call();
    } catch (const FileError& error) {
      throw FileError(error.fault, indexed_.source(), r_.offsets[i], length(i), -1, error.error_number);
    }
  }

  // Returns the result of `use` for the file. Errors name record i.
  template <typename Use>
  auto use_file(std::size_t i, const Use& use) {
    return naming(i, [&] {
      try {
        return use(*file_);
      } catch (const FileError& error) {
        if (error.error_number != ESTALE) throw;
      }
      // The server of a network file system no longer knows this file, but it may know the path.
      cache_.forget(*file_);
      file_ = cache_.open(indexed_.source(), !indexed_.copy.empty());
      return use(*file_);
    });
  }

  void open(std::size_t head) {
    check_what_was_read();
    file_.reset();
    file_id_ = r_.files[head];
    first_of_file_ = head;
    // The file's entry is read before the file, because the file may grow and be indexed again in between.
    indexed_ = r_.paths.file(file_id_);
    file_ = naming(head, [&] { return cache_.open(indexed_.source(), !indexed_.copy.empty()); });
    check(file_->stamp_at_opening());
  }

  // A write during the read changed the file's time first, so this check finds it.
  void check_what_was_read() {
    if (file_ && indexed_.stamp) check(use_file(first_of_file_, [](const File& file) { return file.stamp(); }));
  }

  void check(FileStamp now) {
    const std::size_t i = first_of_file_;
    const auto same = [&](const File& file) {
      if (!is_as_indexed(indexed_, file, now)) return false;
      // A longer file may be the same file with appended bytes, or a different file.
      const bool grew = indexed_.stamp && indexed_.copy.empty() && now.size > indexed_.stamp->size && indexed_.tail != unknown_tail;
      return !grew || checksum_of_tail(file, indexed_.stamp->size) == indexed_.tail;
    };
    if (use_file(i, same)) return;
    const std::int64_t available = std::clamp<std::int64_t>(now.size - r_.offsets[i], 0, length(i));
    const FileFault fault = available < length(i) ? FileFault::truncated : FileFault::changed;
    throw FileError(fault, indexed_.path, r_.offsets[i], length(i), available, 0);
  }

  std::size_t read_some(std::size_t i, std::uint8_t* into, std::size_t size, std::int64_t offset) {
    return use_file(i, [&](const File& file) { return file.read_some(into, size, offset); });
  }

  [[noreturn]] void throw_truncated(std::size_t first, const Run& run, std::int64_t got) const {
    const std::int64_t end_of_file = run.begin + got;
    std::size_t rank = first;
    while (rank + 1 < run.last && r_.offsets[at(rank)] + length(at(rank)) <= end_of_file) ++rank;
    const std::size_t i = at(rank);
    const std::int64_t available = std::max<std::int64_t>(0, end_of_file - r_.offsets[i]);
    throw FileError(FileFault::truncated, file_->path(), r_.offsets[i], length(i), available, 0);
  }

  const GatherRequest& r_;
  const std::vector<std::uint32_t>& order_;
  const std::int64_t* bounds_;
  std::uint8_t* into_;
  FileCache& cache_;
  std::shared_ptr<const File> file_;
  IndexedFile indexed_;
  std::uint32_t file_id_ = 0;
  std::size_t first_of_file_ = 0;
  std::unique_ptr<std::uint8_t[]> scratch_;
  std::size_t scratch_size_ = 0;
};

}  // namespace

void read_records(const GatherRequest& request, std::vector<std::uint32_t> positions, const std::int64_t* bounds, std::uint8_t* into,
                  FileCache& cache, std::size_t threads) {
  if (positions.empty()) return;
  sort_for_reading(request, positions);
  const auto work = bounds[request.count] + static_cast<std::int64_t>(positions.size()) * cost_of_record;
  parallel_blocks(positions.size(), work, threads, [&](std::size_t first, std::size_t last) {
    BlockReader(request, positions, bounds, into, cache).read(first, last);
  });
}

}  // namespace modyn
