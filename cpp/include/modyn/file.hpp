// Reading files: by pread, or through a map. Maps of the user's files may be touched under guard.hpp only: others may cut these files.
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

// A file's time as nanoseconds since 1970. One that does not fit, after 2262 or before 1677, becomes the last or first that does; never the least int64.
inline std::int64_t nanoseconds(const struct timespec& time) {
  constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t second = 1'000'000'000;
  if (time.tv_sec >= last / second) return last;
  if (time.tv_sec <= -(last / second)) return -last;
  return std::int64_t{time.tv_sec} * second + time.tv_nsec;
}

// How long a file is and when it was last written: what is compared to notice that others changed it.
struct FileStamp {
  std::int64_t size;
  std::int64_t mtime_ns;

  bool operator==(const FileStamp& other) const { return size == other.size && mtime_ns == other.mtime_ns; }
};

// Folders, without symbolic links in their paths, that files may be opened in; none: anywhere.
using Roots = std::vector<std::string>;

// Opens a file for reading without waiting for anything; -1 with errno set if that fails, EXDEV if the file lies in none of `roots`. Where it
// lies is asked of the file itself once it cannot become another one: links in its path may change at any time. What lies outside is not
// opened, which could have an effect (devices).
int open_to_read(const std::string& path, const Roots& roots);

// An open file. Safe to read from many threads.
class File {
 public:
  // Throws FileError.
  explicit File(std::string path, const Roots& roots = {});
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Reads up to `size` bytes at `offset` into `into`; returns fewer only at the end of the file. Throws FileError.
  std::size_t read_some(void* into, std::size_t size, std::int64_t offset) const;
  // A map of all bytes that were there when it was opened, made at the first call; null if these are fewer than `size`, or cannot be mapped.
  // It outlives the file. Touching bytes that were cut off since raises SIGBUS.
  std::shared_ptr<const std::uint8_t> map(std::int64_t size) const;
  // Whether the byte at `offset` can be read without waiting for a disk; true where the system cannot say.
  bool is_resident(std::int64_t offset) const;
  // As it is now. Throws FileError.
  FileStamp stamp() const;
  // As it was when it was opened.
  FileStamp stamp_at_opening() const { return stamp_at_opening_; }
  // Whether the path still names the file that is open here, and it is as it was when it was opened.
  bool is_current() const;
  // Whether no path at all names it any more: its space on the disk is free once it is closed.
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

// The most recently used files, kept open. At most `capacity` are kept; a file that a reader still holds closes when it lets go. Safe to
// share between threads.
class FileCache {
 public:
  explicit FileCache(std::size_t capacity, Roots roots = {}) : capacity_(capacity), roots_(std::move(roots)) {}

  // The file that `path` names, as it is now: a kept one that was removed, replaced or written since is not kept any longer. Throws
  // FileError. anywhere: it may lie outside of the roots.
  std::shared_ptr<const File> open(const std::string& path, bool anywhere = false);
  // Drops this file.
  void forget(const File& file);
  // Drops the files that were removed or replaced; returns how many they were. A system call for each file that is kept.
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
  // Moves a kept file to `closing`, with the lock held: it closes after the lock is released.
  void drop(Files::const_iterator file, Files& closing);

  std::size_t capacity_;
  Roots roots_;
  mutable std::mutex mutex_;
  Files files_;  // most recent first
  std::unordered_map<std::string, Files::iterator> by_path_;
};

constexpr std::int64_t unknown_tail = -1;

// CRC-32 of the last 4 KiB, or fewer, of the first `size` bytes of a file: as `zlib.crc32`. Another file that is longer has, most likely, other
// bytes there. `unknown_tail` if the file has fewer bytes. Throws FileError.
std::int64_t checksum_of_tail(const File& file, std::int64_t size);

}  // namespace modyn
