#include "modyn/gather.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "modyn/errors.hpp"
#include "modyn/parallel.hpp"

namespace modyn {
namespace {

// Reading this many bytes that nobody asked for costs less than another system call.
constexpr std::int64_t max_gap = 4096;
// Most bytes read at once through a thread's scratch space.
constexpr std::int64_t max_run = 1 << 20;
// A thread is worth starting for this many bytes or this many records.
constexpr std::int64_t bytes_per_thread = 256 << 10;
constexpr std::size_t records_per_thread = 64;
constexpr std::size_t blocks_per_thread = 4;

unsigned bits_for(std::uint64_t value) {
  unsigned bits = 0;
  for (; value != 0; value >>= 1) ++bits;
  return bits;
}

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

bool is_sorted(const GatherRequest& r) {
  for (std::size_t i = 1; i < r.count; ++i) {
    if (r.files[i] < r.files[i - 1] || (r.files[i] == r.files[i - 1] && r.offsets[i] < r.offsets[i - 1])) return false;
  }
  return true;
}

// Positions in the order (file, offset, position); empty if they are in this order already.
std::vector<std::uint32_t> reading_order(const GatherRequest& r) {
  if (is_sorted(r)) return {};
  std::vector<std::uint32_t> order(r.count);
  const auto max_file = *std::max_element(r.files, r.files + r.count);
  const auto max_offset = *std::max_element(r.offsets, r.offsets + r.count);
  const unsigned position_bits = bits_for(r.count - 1);
  const unsigned offset_bits = bits_for(static_cast<std::uint64_t>(max_offset));
  const unsigned all_bits = position_bits + offset_bits + bits_for(max_file);
  if (all_bits <= 64) {
    // The usual case: file, offset and position fit into one number, and numbers sort fast.
    std::vector<std::uint64_t> keys(r.count);
    for (std::size_t i = 0; i < r.count; ++i) {
      const auto file = offset_bits + position_bits < 64 ? std::uint64_t{r.files[i]} << (offset_bits + position_bits) : 0;
      keys[i] = file | static_cast<std::uint64_t>(r.offsets[i]) << position_bits | i;
    }
    radix_sort(keys, position_bits, all_bits);
    const std::uint64_t mask = (std::uint64_t{1} << position_bits) - 1;
    std::transform(keys.begin(), keys.end(), order.begin(), [mask](auto key) { return static_cast<std::uint32_t>(key & mask); });
    return order;
  }
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&r](auto a, auto b) {
    return r.files[a] != r.files[b] ? r.files[a] < r.files[b] : r.offsets[a] < r.offsets[b];
  });
  return order;
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
  }

 private:
  // Records at ranks [first, last), all within bytes [begin, end) of one file. direct: the buffer wants them exactly as they lie there.
  struct Run {
    std::size_t last;
    std::int64_t begin;
    std::int64_t end;
    bool direct;
  };

  std::size_t at(std::size_t rank) const { return order_.empty() ? rank : order_[rank]; }

  Run next_run(std::size_t first, std::size_t last) const {
    const std::size_t head = at(first);
    Run run{first + 1, r_.offsets[head], r_.offsets[head] + r_.length(head), true};
    for (; run.last < last; ++run.last) {
      const std::size_t i = at(run.last);
      const std::int64_t begin = r_.offsets[i];
      const std::int64_t end = std::max(run.end, begin + r_.length(i));
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
    const std::string& path = r_.paths[r_.files[head]];
    if (!file_ || file_->path() != path) file_ = open(path, head);
    const auto size = static_cast<std::size_t>(run.end - run.begin);
    std::uint8_t* target = run.direct ? into_ + bounds_[head] : scratch(size);
    const std::size_t got = file_->read_some(target, size, run.begin);
    if (got < size) throw_truncated(first, run, static_cast<std::int64_t>(got));
    if (run.direct) return;
    for (std::size_t rank = first; rank < run.last; ++rank) {
      const std::size_t i = at(rank);
      std::memcpy(into_ + bounds_[i], target + (r_.offsets[i] - run.begin), static_cast<std::size_t>(r_.length(i)));
    }
  }

  std::shared_ptr<const File> open(const std::string& path, std::size_t head) const {
    try {
      return cache_.open(path);
    } catch (FileError& error) {
      throw FileError(error.fault, path, r_.offsets[head], r_.length(head), -1, error.error_number);
    }
  }

  std::uint8_t* scratch(std::size_t size) {
    if (scratch_size_ < size) {
      scratch_.reset(new std::uint8_t[size]);  // not value-initialised: every byte is read over
      scratch_size_ = size;
    }
    return scratch_.get();
  }

  [[noreturn]] void throw_truncated(std::size_t first, const Run& run, std::int64_t got) const {
    const std::int64_t end_of_file = run.begin + got;
    std::size_t rank = first;
    while (rank + 1 < run.last && r_.offsets[at(rank)] + r_.length(at(rank)) <= end_of_file) ++rank;
    const std::size_t i = at(rank);
    const std::int64_t available = std::max<std::int64_t>(0, end_of_file - r_.offsets[i]);
    throw FileError(FileFault::truncated, file_->path(), r_.offsets[i], r_.length(i), available, 0);
  }

  const GatherRequest& r_;
  const std::vector<std::uint32_t>& order_;
  const std::int64_t* bounds_;
  std::uint8_t* into_;
  FileCache& cache_;
  std::shared_ptr<const File> file_;
  std::unique_ptr<std::uint8_t[]> scratch_;
  std::size_t scratch_size_ = 0;
};

}  // namespace

void gather_bounds(const GatherRequest& r, std::int64_t* bounds) {
  constexpr auto limit = std::numeric_limits<std::int64_t>::max();
  if (r.count > std::numeric_limits<std::uint32_t>::max()) {
    throw InvalidArgument("at most 2^32 - 1 records can be gathered at once, not " + std::to_string(r.count));
  }
  bounds[0] = 0;
  for (std::size_t i = 0; i < r.count; ++i) {
    const std::int64_t length = r.length(i);
    if (length < 0 || r.offsets[i] < 0 || r.offsets[i] > limit - length || bounds[i] > limit - length) {
      throw InvalidArgument("record " + std::to_string(i) + " cannot exist: " + std::to_string(length) + " bytes at byte " +
                            std::to_string(r.offsets[i]));
    }
    if (r.files[i] >= r.paths.size()) {
      throw InvalidArgument("record " + std::to_string(i) + " names file " + std::to_string(r.files[i]) + " of " +
                            std::to_string(r.paths.size()));
    }
    bounds[i + 1] = bounds[i] + length;
  }
}

void gather(const GatherRequest& request, const std::int64_t* bounds, std::uint8_t* into, FileCache& files, std::size_t threads) {
  if (request.count == 0) return;
  const std::vector<std::uint32_t> order = reading_order(request);
  const auto by_bytes = static_cast<std::size_t>(bounds[request.count] / bytes_per_thread);
  const std::size_t useful = std::min(std::max<std::size_t>(threads, 1), 1 + std::max(by_bytes, request.count / records_per_thread));
  const std::size_t blocks = useful == 1 ? 1 : std::min(request.count, useful * blocks_per_thread);
  parallel_for(blocks, useful, [&](std::size_t block) {
    BlockReader reader(request, order, bounds, into, files);
    reader.read(request.count * block / blocks, request.count * (block + 1) / blocks);
  });
}

}  // namespace modyn
