#include "modyn/path_table.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "modyn/errors.hpp"

namespace modyn {

PathTable::PathTable(std::string base) : base_(std::move(base)) {
  if (!base_.empty() && base_.back() != '/') base_ += '/';
}

void PathTable::append(const std::vector<std::string>& paths) {
  struct Packed {
    std::string text;
    std::vector<std::int64_t> ends;
  };
  auto packed = std::make_shared<Packed>();
  packed->ends.reserve(paths.size());
  for (const auto& path : paths) {
    packed->text += path;
    packed->ends.push_back(static_cast<std::int64_t>(packed->text.size()));
  }
  const auto* text = reinterpret_cast<const std::uint8_t*>(packed->text.data());
  append_packed(text, packed->text.size(), packed->ends.data(), packed->ends.size(), packed);
}

void PathTable::append_packed(const std::uint8_t* text, std::size_t text_size, const std::int64_t* ends, std::size_t count,
                              std::shared_ptr<const void> owner) {
  if (count == 0) return;
  const std::unique_lock lock(mutex_);
  blocks_.push_back({size_, text, text_size, ends, count, std::move(owner)});
  size_ += count;
}

std::size_t PathTable::size() const {
  const std::shared_lock lock(mutex_);
  return size_;
}

std::string PathTable::path(std::size_t id) const {
  const std::shared_lock lock(mutex_);
  if (id >= size_) throw std::out_of_range("file " + std::to_string(id) + " of " + std::to_string(size_));
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), id, [](auto wanted, const Block& block) { return wanted < block.first; });
  const Block& block = *std::prev(after);
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
