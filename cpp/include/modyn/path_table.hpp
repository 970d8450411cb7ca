// Maps ids to the files of a dataset. Paths are in memory or in mapped blocks of text.
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
  std::string copy = {};             // for a compressed file: the path of its unpacked copy, which only storage writes

  // Path of the file to read.
  const std::string& source() const { return copy.empty() ? path : copy; }
  // Returns whether a file with the stamp `now` still has the indexed content, as far as stamps show. For appended files, the tail is compared.
  // A copy never changes.
  bool may_be(FileStamp now) const { return !stamp || !copy.empty() || now == *stamp || (may_grow && now.size > stamp->size); }
};

// `count` paths: path i is text[ends[i - 1], ends[i]), the first one from 0. Sizes and times of the files are both null if they are not known.
// The arrays are not copied; `owner` keeps them alive.
struct PackedPaths {
  const std::uint8_t* text;
  std::size_t text_size;
  const std::int64_t* ends;
  std::size_t count;
  std::shared_ptr<const void> owner;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* mtimes_ns = nullptr;
  const std::int64_t* tails = nullptr;  // null if they are not known, also below
};

// Sizes and times of `count` files with ascending ids, owned as above.
struct FileStamps {
  const std::int64_t* ids = nullptr;
  const std::int64_t* sizes = nullptr;
  const std::int64_t* mtimes_ns = nullptr;
  std::size_t count = 0;
  std::shared_ptr<const void> owner;
  const std::int64_t* tails = nullptr;
};

// Ids count from 0 in the order of appending. Paths are relative to `base`; absolute paths are used as they are. Safe to append to while others
// read.
class PathTable {
 public:
  // With an empty base, paths are used as they are. may_grow: files that were appended to count as unchanged. unpacked: the folder of unpacked
  // copies; if empty, compressed files have no copies and are treated like others.
  explicit PathTable(std::string base, bool may_grow = false, std::string unpacked = {});

  // Throws InvalidArgument beyond 2^32 files, like the next function.
  void append(const std::vector<std::string>& paths);
  // Copies nothing, and reads no path before it is requested, so that a mapped block of millions takes no memory.
  void append_packed(PackedPaths paths);
  // Replaces all stamps that these files came with; earlier replacements are forgotten.
  void restamp(FileStamps stamps);

  std::size_t size() const;
  // Returns the full path and the other data of the file. Throws std::out_of_range, and InvalidArgument if the ends of a packed block are not
  // valid.
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
