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
  std::int64_t tail = unknown_tail;  // `checksum_of_tail` at the size of the stamp
  std::string copy = {};             // of a compressed file: where its unpacked copy lies, which storage alone writes

  // The file that is read.
  const std::string& source() const { return copy.empty() ? path : copy; }
  // Whether a file that is `now` like this still has what was indexed, as far as stamps show. What was appended to is checked by its
  // tail. A copy never changes.
  bool may_be(FileStamp now) const { return !stamp || !copy.empty() || now == *stamp || (may_grow && now.size > stamp->size); }
};

// `count` paths, of which path i is text[ends[i - 1], ends[i]), the first from 0, with sizes and times of the files, which are both null
// where they are not known. The arrays stay where they are as long as `owner` lives.
struct PackedPaths {
  const std::uint8_t* text;
  std::size_t text_size;
  const std::int64_t* ends;
  std::size_t count;
  std::shared_ptr<const void> owner;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* mtimes_ns = nullptr;
  const std::int64_t* tails = nullptr;  // null where they are not known, also below
};

// Sizes and times of `count` files, whose ids ascend; owned as above.
struct FileStamps {
  const std::int64_t* ids = nullptr;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* mtimes_ns = nullptr;
  std::size_t count = 0;
  std::shared_ptr<const void> owner;
  const std::int64_t* tails = nullptr;
};

// Ids count from 0 in the order of appending. Paths are relative to `base`; an absolute one stands for itself. Safe to append to while
// others read.
class PathTable {
 public:
  // An empty base: paths stand as they are. may_grow: files that were appended to are not changed ones. unpacked: the folder of unpacked
  // copies; empty: compressed files have none, and are files like others.
  explicit PathTable(std::string base, bool may_grow = false, std::string unpacked = {});

  // Throws InvalidArgument, as the next one does, if there were more than 2^32 files.
  void append(const std::vector<std::string>& paths);
  // Copies nothing, and looks at no path before it is asked for, so that a mapped block of millions costs no memory.
  void append_packed(PackedPaths paths);
  // Stamps that stand in place of those that these files came with, all of them: earlier ones are forgotten.
  void restamp(FileStamps stamps);

  std::size_t size() const;
  // The whole path, with what else is known of the file. Throws std::out_of_range, and InvalidArgument if the ends of a packed block make no
  // sense there.
  IndexedFile file(std::size_t id) const;

 private:
  struct Block {
    std::size_t first;  // id
    PackedPaths paths;
  };

  std::string base_;  // with a slash at the end, unless empty
  bool may_grow_;
  std::string unpacked_;
  mutable std::shared_mutex mutex_;
  std::deque<Block> blocks_;
  std::size_t size_ = 0;
  FileStamps restamped_;
};

}  // namespace modyn
