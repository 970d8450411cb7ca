#include "modyn/path_table.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

// Ids fit into 32 bits: so does a gatherer, and the index, take them.
constexpr std::size_t max_files = std::size_t{1} << 32;

}  // namespace

PathTable::PathTable(std::string base, bool may_grow) : base_(std::move(base)), may_grow_(may_grow) {
  if (!base_.empty() && base_.back() != '/') base_ += '/';
}

void PathTable::append(const std::vector<std::string>& paths, std::vector<FileStamp> stamps) {
  struct Packed {
    std::string text;
    std::vector<std::int64_t> ends, sizes, mtimes_ns;
  };
  if (!stamps.empty() && stamps.size() != paths.size()) throw InvalidArgument("there must be a stamp for each path");
  auto packed = std::make_shared<Packed>();
  packed->ends.reserve(paths.size());
  for (const auto& path : paths) {
    packed->text += path;
    packed->ends.push_back(static_cast<std::int64_t>(packed->text.size()));
  }
  for (const auto& stamp : stamps) {
    packed->sizes.push_back(stamp.size);
    packed->mtimes_ns.push_back(stamp.mtime_ns);
  }
  const auto* text = reinterpret_cast<const std::uint8_t*>(packed->text.data());
  const bool stamped = !stamps.empty();
  append_packed(text, packed->text.size(), packed->ends.data(), packed->ends.size(), packed, stamped ? packed->sizes.data() : nullptr,
                stamped ? packed->mtimes_ns.data() : nullptr);
}

void PathTable::append_packed(const std::uint8_t* text, std::size_t text_size, const std::int64_t* ends, std::size_t count,
                              std::shared_ptr<const void> owner, const std::int64_t* sizes, const std::int64_t* mtimes_ns) {
  if (count == 0) return;
  const std::unique_lock lock(mutex_);
  if (count > max_files - size_) throw InvalidArgument("a dataset has at most 2^32 files");
  blocks_.push_back({size_, text, text_size, ends, count, std::move(owner), sizes, mtimes_ns});
  size_ += count;
}

void PathTable::restamp(const std::int64_t* ids, const std::int64_t* sizes, const std::int64_t* mtimes_ns, std::size_t count,
                        std::shared_ptr<const void> owner) {
  Stamps stamps{ids, sizes, mtimes_ns, count, std::move(owner)};  // the old ones go after the lock
  const std::unique_lock lock(mutex_);
  std::swap(restamped_, stamps);
}

std::size_t PathTable::size() const {
  const std::shared_lock lock(mutex_);
  return size_;
}

std::string PathTable::path(std::size_t id) const {
  const std::shared_lock lock(mutex_);
  return path_in(block_of(id), id);
}

IndexedFile PathTable::file(std::size_t id) const {
  const std::shared_lock lock(mutex_);
  const Block& block = block_of(id);
  IndexedFile file{path_in(block, id), std::nullopt, may_grow_};
  const auto* const ids_end = restamped_.ids + restamped_.count;
  const auto* const found = std::lower_bound(restamped_.ids, ids_end, static_cast<std::int64_t>(id));
  if (found != ids_end && *found == static_cast<std::int64_t>(id)) {
    const auto place = found - restamped_.ids;
    file.stamp = FileStamp{restamped_.sizes[place], restamped_.mtimes_ns[place]};
  } else if (block.sizes != nullptr) {
    file.stamp = FileStamp{block.sizes[id - block.first], block.mtimes_ns[id - block.first]};
  }
  return file;
}

const PathTable::Block& PathTable::block_of(std::size_t id) const {
  if (id >= size_) throw std::out_of_range("file " + std::to_string(id) + " of " + std::to_string(size_));
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), id, [](auto wanted, const Block& block) { return wanted < block.first; });
  return *std::prev(after);
}

std::string PathTable::path_in(const Block& block, std::size_t id) const {
  const std::size_t place = id - block.first;
  const std::int64_t begin = place == 0 ? 0 : block.ends[place - 1];
  const std::int64_t end = block.ends[place];
  if (begin < 0 || end < begin || static_cast<std::uint64_t>(end) > block.text_size) {
    throw InvalidArgument("the packed paths are damaged: path " + std::to_string(id) + " is said to be bytes " + std::to_string(begin) +
                          " to " + std::to_string(end) + " of " + std::to_string(block.text_size));
  }
  const std::string relative(reinterpret_cast<const char*>(block.text) + begin, static_cast<std::size_t>(end - begin));
  return relative.empty() || relative.front() != '/' ? base_ + relative : relative;
}

}  // namespace modyn
