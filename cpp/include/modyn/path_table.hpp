// Which file an id means: the paths of a dataset's files, from memory or from mapped blocks of text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

namespace modyn {

// Ids count from 0 in the order of appending. Paths are relative to `base`; an absolute one stands for itself. Safe to append to while
// others read.
class PathTable {
 public:
  // An empty base: paths stand as they are.
  explicit PathTable(std::string base);

  void append(const std::vector<std::string>& paths);
  // `count` paths, of which path i is text[ends[i - 1], ends[i]), the first from 0. Nothing is copied: both stay where they are as long
  // as `owner` lives. They are not looked at before they are asked for, so that a mapped block of millions costs no memory.
  void append_packed(const std::uint8_t* text, std::size_t text_size, const std::int64_t* ends, std::size_t count,
                     std::shared_ptr<const void> owner);

  std::size_t size() const;
  // The whole path. Throws std::out_of_range, and InvalidArgument if the ends of a packed block make no sense there.
  std::string path(std::size_t id) const;

 private:
  struct Block {
    std::size_t first;  // id
    const std::uint8_t* text;
    std::size_t text_size;
    const std::int64_t* ends;
    std::size_t count;
    std::shared_ptr<const void> owner;
  };

  std::string base_;  // with a slash at the end, unless empty
  mutable std::shared_mutex mutex_;
  std::deque<Block> blocks_;
  std::size_t size_ = 0;
};

}  // namespace modyn
