// Reading files with pread or through a map. A map of a user's file may be read only under guard.hpp, because others may truncate the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace modyn {

// Converts a file's time to nanoseconds since 1970. A time that does not fit (before 1677 or after 2262) becomes the first or last that does,
// but never the smallest int64.
inline std::int64_t nanoseconds(const struct timespec& time) {
  constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t second = 1'000'000'000;
  if (time.tv_sec >= last / second) return last;
  if (time.tv_sec <= -(last / second)) return -last;
  return std::int64_t{time.tv_sec} * second + time.tv_nsec;
}

// Size and modification time of a file, which are compared to detect changes.
struct FileStamp {
  std::int64_t size;
  std::int64_t mtime_ns;

  bool operator==(const FileStamp& other) const { return size == other.size && mtime_ns == other.mtime_ns; }
};

// Folders, without symbolic links in their paths, in which files may be opened. Empty: anywhere.
using Roots = std::vector<std::string>;

// Opens a file for reading without waiting. Returns -1 and sets errno on failure, EXDEV if the file is outside of `roots`. The location is read
// from the open file, which cannot change, because links in its path may change at any time. A file outside of the roots is never opened,
// since opening a device could have an effect.
int open_to_read(const std::string& path, const Roots& roots);

// An open file. Safe to read from many threads.
class File {
 public:
  // Throws FileError.
  explicit File(std::string path, const Roots& roots = {});
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Reads up to `size` bytes at `offset` into `into`. Returns fewer only at the end of the file. Throws FileError.
  std::size_t read_some(void* into, std::size_t size, std::int64_t offset) const;
  // Maps all bytes that the file had when it was opened, at the first call. Returns null if these are fewer than `size`, or cannot be mapped.
  // The map outlives the file. Reading bytes that were cut off raises SIGBUS.
  std::shared_ptr<const std::uint8_t> map(std::int64_t size) const;
  // Returns whether the byte at `offset` can be read without waiting for a disk; true if the system cannot tell.
  bool is_resident(std::int64_t offset) const;
  // The file as it is now. Throws FileError.
  FileStamp stamp() const;
  // The file as it was when it was opened.
  FileStamp stamp_at_opening() const { return stamp_at_opening_; }
  // Returns whether the path still names this open file, and the file is unchanged since it was opened.
  bool is_current() const;
  // Returns whether no path names the file any more, so that closing it frees its disk space.
  bool is_removed() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_;
  std::uint64_t device_;
  std::uint64_t inode_;
  FileStamp stamp_at_opening_;
  mutable std::mutex map_mutex_;
  mutable std::shared_ptr<const std::uint8_t> map_;
};

// The most recently used files, kept open. At most `capacity` are kept. A file that a reader still holds closes when the reader releases it.
// Safe to share between threads.
class FileCache {
 public:
  explicit FileCache(std::size_t capacity, Roots roots = {}) : capacity_(capacity), roots_(std::move(roots)) {}

  // Returns the file that `path` names now. A kept file that was removed, replaced or written since is dropped. Throws FileError. anywhere: the
  // file may be outside of the roots.
  std::shared_ptr<const File> open(const std::string& path, bool anywhere = false);
  // Removes this file from the cache.
  void forget(const File& file);
  // Removes deleted and replaced files from the cache, and returns their number. Needs a system call for each kept file.
  std::size_t forget_removed();
  std::size_t size() const;
  std::size_t capacity() const { return capacity_; }
  void clear();

 private:
  using Files = std::list<std::shared_ptr<const File>>;

  std::shared_ptr<const File> find(const std::string& path);
  std::shared_ptr<const File> open_anew(const std::string& path, bool anywhere);
  void forget_older_half();
  void keep(std::shared_ptr<const File> file);
  // Moves a kept file to `closing` while the lock is held: it closes after the lock is released.
  void drop(Files::const_iterator file, Files& closing);

  std::size_t capacity_;
  Roots roots_;
  mutable std::mutex mutex_;
  Files files_;  // most recent first
  std::unordered_map<std::string, Files::iterator> by_path_;
};

constexpr std::int64_t unknown_tail = -1;

// Returns the CRC-32, as `zlib.crc32` computes it, of the last 4 KiB (or fewer) of the first `size` bytes of a file. Another, longer file most
// likely has other bytes there. Returns `unknown_tail` if the file has fewer bytes. Throws FileError.
std::int64_t checksum_of_tail(const File& file, std::int64_t size);

}  // namespace modyn
