// The indexed files of a dataset. A listing of its folder is compared with them, file by file, without Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace modyn {

// Paths with the sizes and times of the files when they were indexed, by id (dense from 0) and by path. About 50 bytes and the path for each
// file. One writer; must not change while it is read.
class KnownFiles {
 public:
  static constexpr std::int64_t unknown = -1;

  std::size_t size() const { return ends_.size(); }
  // Adds a file with the next id, even if another one has the path. Throws InvalidArgument beyond 2^32 - 1 files.
  void append(std::string_view path, std::int64_t size, std::int64_t mtime_ns, bool altered, std::int64_t tail = -1);
  void change(std::size_t id, std::int64_t size, std::int64_t mtime_ns, bool altered, std::int64_t tail = -1);

  // Returns the id of the newest file with this path; `unknown` if there is none.
  std::int64_t find(std::string_view path) const;
  std::string_view path(std::size_t id) const;
  std::int64_t bytes(std::size_t id) const { return sizes_[id]; }
  std::int64_t mtime_ns(std::size_t id) const { return mtimes_ns_[id]; }
  std::int64_t tail(std::size_t id) const { return tails_[id]; }
  // Returns whether a file with this stamp is unchanged and need not be examined.
  bool is_as_indexed(std::size_t id, std::int64_t size, std::int64_t mtime_ns) const {
    return sizes_[id] == size && mtimes_ns_[id] == mtime_ns && altered_[id] == 0;
  }
  // Returns whether a file is below the folder, at any depth.
  bool any_below(std::string_view folder) const;

 private:
  void place(std::uint64_t slot);
  std::size_t home(std::uint64_t hash) const { return static_cast<std::size_t>((hash >> 32) * slots_.size() >> 32); }

  std::string text_;
  std::vector<std::uint64_t> ends_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> mtimes_ns_;
  std::vector<std::int64_t> tails_;
  std::vector<std::uint8_t> altered_;
  std::vector<std::uint64_t> slots_;  // the upper half of a path's hash, and id + 1; 0 is empty. At most half of the slots are taken.
};

}  // namespace modyn
