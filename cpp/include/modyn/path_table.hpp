// Which file an id means: the paths of a dataset's files, from memory or from mapped blocks of text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "modyn/file.hpp"

namespace modyn {

// A file as it was when it was indexed.
struct IndexedFile {
  std::string path;
  std::optional<FileStamp> stamp;
  bool may_grow = false;

  // Whether a file that is `now` like this still has what was indexed, as far as stamps show. Appended content is checked where it is
  // indexed.
  bool may_be(FileStamp now) const { return !stamp || now == *stamp || (may_grow && now.size > stamp->size); }
};

// Ids count from 0 in the order of appending. Paths are relative to `base`; an absolute one stands for itself. Safe to append to while
// others read.
class PathTable {
 public:
  // An empty base: paths stand as they are. may_grow: files that were appended to are not changed ones.
  explicit PathTable(std::string base, bool may_grow = false);

  // With a stamp for each path, or none at all. Throws InvalidArgument, as the next one does, if there were more than 2^32 files.
  void append(const std::vector<std::string>& paths, std::vector<FileStamp> stamps = {});
  // `count` paths, of which path i is text[ends[i - 1], ends[i]), the first from 0. Nothing is copied: both stay where they are as long
  // as `owner` lives. They are not looked at before they are asked for, so that a mapped block of millions costs no memory. The same holds for sizes
  // and times of the files, which are both null where they are not known.
  void append_packed(const std::uint8_t* text, std::size_t text_size, const std::int64_t* ends, std::size_t count,
                     std::shared_ptr<const void> owner, const std::int64_t* sizes = nullptr, const std::int64_t* mtimes_ns = nullptr);
  // Stamps that stand in place of those that these ids came with, all of them: earlier ones are forgotten. `ids` ascend; owned as above.
  void restamp(const std::int64_t* ids, const std::int64_t* sizes, const std::int64_t* mtimes_ns, std::size_t count,
               std::shared_ptr<const void> owner);

  std::size_t size() const;
  // The whole path. Throws std::out_of_range, and InvalidArgument if the ends of a packed block make no sense there.
  std::string path(std::size_t id) const;
  // The same with what else is known of it.
  IndexedFile file(std::size_t id) const;

 private:
  struct Block {
    std::size_t first;  // id
    const std::uint8_t* text;
    std::size_t text_size;
    const std::int64_t* ends;
    std::size_t count;
    std::shared_ptr<const void> owner;
    const std::int64_t* sizes;
    const std::int64_t* mtimes_ns;
  };
  struct Stamps {
    const std::int64_t* ids;
    const std::int64_t* sizes;
    const std::int64_t* mtimes_ns;
    std::size_t count;
    std::shared_ptr<const void> owner;
  };

  // Both with the lock held.
  const Block& block_of(std::size_t id) const;
  std::string path_in(const Block& block, std::size_t id) const;

  std::string base_;  // with a slash at the end, unless empty
  bool may_grow_;
  mutable std::shared_mutex mutex_;
  std::deque<Block> blocks_;
  std::size_t size_ = 0;
  Stamps restamped_{};
};

}  // namespace modyn
