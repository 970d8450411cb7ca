#include "modyn/path_table.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "modyn/errors.hpp"
#include "modyn/unpacked.hpp"

namespace modyn {
namespace {

// Ids fit into 32 bits, which gatherers and the index require.
constexpr std::size_t max_files = std::size_t{1} << 32;

}  // namespace

PathTable::PathTable(std::string base, bool may_grow, std::string unpacked)
    : base_(std::move(base)), may_grow_(may_grow), unpacked_(std::move(unpacked)) {
  if (!base_.empty() && base_.back() != '/') base_ += '/';
}

void PathTable::append(const std::vector<std::string>& paths) {
  struct Packed {
    std::string text;
    std::vector<std::int64_t> ends;
  };
  auto packed = std::make_shared<Packed>();
  for (const auto& path : paths) {
    packed->text += path;
    packed->ends.push_back(static_cast<std::int64_t>(packed->text.size()));
  }
  append_packed({reinterpret_cast<const std::uint8_t*>(packed->text.data()), packed->text.size(), packed->ends.data(), paths.size(), packed});
}

void PathTable::append_packed(PackedPaths paths) {
  if (paths.count == 0) return;
  const std::unique_lock lock(mutex_);
  if (paths.count > max_files - size_) throw InvalidArgument("a dataset has at most 2^32 files");
  blocks_.push_back({size_, std::move(paths)});
  size_ += blocks_.back().paths.count;
}

void PathTable::restamp(FileStamps stamps) {
  const std::unique_lock lock(mutex_);
  std::swap(restamped_, stamps);  // the old ones are freed after the lock
}

std::size_t PathTable::size() const {
  const std::shared_lock lock(mutex_);
  return size_;
}

IndexedFile PathTable::file(std::size_t id) const {
  const std::shared_lock lock(mutex_);
  if (id >= size_) throw std::out_of_range("file " + std::to_string(id) + " of " + std::to_string(size_));
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), id, [](auto wanted, const Block& block) { return wanted < block.first; });
  const auto& [first, paths] = *std::prev(after);
  const std::size_t place = id - first;
  const std::int64_t begin = place == 0 ? 0 : paths.ends[place - 1];
  const std::int64_t end = paths.ends[place];
  if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > paths.text_size) {
    throw InvalidArgument("the packed paths are damaged: path " + std::to_string(id) + " is said to be bytes " + std::to_string(begin) +
                          " to " + std::to_string(end) + " of " + std::to_string(paths.text_size));
  }
  const std::string relative(reinterpret_cast<const char*>(paths.text) + begin, static_cast<std::size_t>(end - begin));
  IndexedFile file{relative.empty() || relative.front() != '/' ? base_ + relative : relative, std::nullopt, may_grow_};
  const auto* const ids_end = restamped_.ids + restamped_.count;
  const auto* const found = std::lower_bound(restamped_.ids, ids_end, static_cast<std::int64_t>(id));
  if (found != ids_end && *found == static_cast<std::int64_t>(id)) {
    const auto number = found - restamped_.ids;
    file.stamp = FileStamp{restamped_.sizes[number], restamped_.mtimes_ns[number]};
    if (restamped_.tails != nullptr) file.tail = restamped_.tails[number];
  } else if (paths.sizes != nullptr) {
    file.stamp = FileStamp{paths.sizes[place], paths.mtimes_ns[place]};
    if (paths.tails != nullptr) file.tail = paths.tails[place];
  }
  if (!unpacked_.empty() && file.stamp && without_packed_ending(relative).size() < relative.size()) {
    file.copy = unpacked_copy(unpacked_, relative, file.stamp->size, file.tail);
  }
  return file;
}

}  // namespace modyn
