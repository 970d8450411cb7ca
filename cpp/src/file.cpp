#include "modyn/file.hpp"

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iterator>
#include <utility>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

FileStamp stamp_of(const struct stat& status) { return {status.st_size, nanoseconds(status.st_mtim)}; }

// 0, or the errno of the failed read.
int look_at(int descriptor, struct stat& status) {
  if (::fstat(descriptor, &status) != 0) return errno;
  if (S_ISDIR(status.st_mode)) return EISDIR;
  return S_ISREG(status.st_mode) ? 0 : EINVAL;
}

bool lies_in(const std::string& path, const std::string& folder) {
  const std::string start = folder == "/" ? folder : folder + "/";
  return path.compare(0, start.size(), start) == 0;
}

// open(2), repeated while it is interrupted. O_NONBLOCK: opening a named pipe must not wait for a writer. It has no effect on regular files.
int open_now(const char* path, int flags) {
  int descriptor;
  do {
    descriptor = ::open(path, flags | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

}  // namespace

int open_to_read(const std::string& path, const Roots& roots) {
  if (roots.empty()) return open_now(path.c_str(), O_RDONLY);
  const int handle = open_now(path.c_str(), O_PATH);
  if (handle < 0) return -1;
  const std::string name = "/proc/self/fd/" + std::to_string(handle);
  std::string place(PATH_MAX, '\0');
  const ssize_t size = ::readlink(name.c_str(), place.data(), place.size());
  place.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  const bool inside = std::any_of(roots.begin(), roots.end(), [&](const std::string& root) { return lies_in(place, root); });
  const int descriptor = inside ? open_now(name.c_str(), O_RDONLY) : -1;
  const int error_number = inside ? errno : size < 0 ? errno : EXDEV;
  ::close(handle);
  errno = error_number;
  return descriptor;
}

File::File(std::string path, const Roots& roots) : path_(std::move(path)), descriptor_(-1), device_(0), inode_(0), stamp_at_opening_{} {
  descriptor_ = open_to_read(path_, roots);
  if (descriptor_ < 0) throw file_error(errno, path_, 0, 0);
  struct stat status {};
  if (const int error_number = look_at(descriptor_, status); error_number != 0) {
    ::close(descriptor_);
    throw file_error(error_number, path_, 0, 0);
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  stamp_at_opening_ = stamp_of(status);
}

File::~File() { ::close(descriptor_); }

std::size_t File::read_some(void* into, std::size_t size, std::int64_t offset) const {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(descriptor_, static_cast<char*>(into) + done, size - done, offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error(errno, path_, offset, static_cast<std::int64_t>(size));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

std::shared_ptr<const std::uint8_t> File::map(std::int64_t wanted) const {
  // Bytes that were appended later are not mapped. On overlayfs the first write moves a file to the upper layer, and a map through an older
  // descriptor, unlike a read, keeps showing the lower one.
  const auto size = static_cast<std::size_t>(stamp_at_opening_.size);
  if (size == 0 || stamp_at_opening_.size < wanted) return nullptr;
  const std::lock_guard lock(map_mutex_);
  if (map_) return map_;
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
  // No address space, too many maps, or a file system without maps: pread still works.
  if (address == MAP_FAILED) return nullptr;
  map_.reset(static_cast<const std::uint8_t*>(address), [address, size](const std::uint8_t*) { ::munmap(address, size); });
  return map_;
}

bool File::is_resident(std::int64_t offset) const {
  char byte;
  iovec into{&byte, 1};
  if (::preadv2(descriptor_, &into, 1, offset, RWF_NOWAIT) >= 0) return true;
  // Some file systems (tmpfs, NFS) and old kernels do not support this, and a sandbox may forbid it.
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL && errno != EPERM) return false;
  // mincore is only a fallback: it always returns true to a process that may not write the file.
  const auto mapped = map(offset + 1);
  if (!mapped) return true;
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto* const byte_of_map = mapped.get() + static_cast<std::size_t>(offset) / page * page;
  unsigned char resident = 1;
  ::mincore(const_cast<std::uint8_t*>(byte_of_map), 1, &resident);
  return (resident & 1U) != 0;
}

FileStamp File::stamp() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw file_error(errno, path_, 0, 0);
  return stamp_of(status);
}

bool File::is_current() const {
  struct stat status {};
  return ::stat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_ && stamp_of(status) == stamp_at_opening_;
}

bool File::is_removed() const {
  struct stat status {};
  return ::fstat(descriptor_, &status) != 0 || status.st_nlink == 0;
}

std::shared_ptr<const File> FileCache::open(const std::string& path, bool anywhere) {
  if (const auto kept = find(path)) {
    if (kept->is_current()) return kept;
    forget(*kept);
  }
  auto file = open_anew(path, anywhere);
  keep(file);
  return file;
}

// Opens without the lock: a slow disk must not block readers of other files. If two threads open one file, the last one is kept.
std::shared_ptr<const File> FileCache::open_anew(const std::string& path, bool anywhere) {
  const Roots& roots = anywhere ? Roots() : roots_;
  try {
    return std::make_shared<const File>(path, roots);
  } catch (const FileError& error) {
    if (error.error_number != EMFILE && error.error_number != ENFILE) throw;
  }
  forget_older_half();  // the limit of open files is reached: close some that the cache keeps
  return std::make_shared<const File>(path, roots);
}

std::shared_ptr<const File> FileCache::find(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = by_path_.find(path);
  if (found == by_path_.end()) return nullptr;
  files_.splice(files_.begin(), files_, found->second);
  return *found->second;
}

void FileCache::keep(std::shared_ptr<const File> file) {
  if (capacity_ == 0) return;
  Files closing;
  const std::lock_guard lock(mutex_);
  if (const auto found = by_path_.find(file->path()); found != by_path_.end()) drop(found->second, closing);
  if (files_.size() == capacity_) drop(std::prev(files_.end()), closing);
  files_.push_front(std::move(file));
  by_path_.emplace(files_.front()->path(), files_.begin());
}

void FileCache::drop(Files::const_iterator file, Files& closing) {
  by_path_.erase((*file)->path());
  closing.splice(closing.begin(), files_, file);
}

void FileCache::forget(const File& file) {
  Files closing;
  const std::lock_guard lock(mutex_);
  const auto found = by_path_.find(file.path());
  if (found != by_path_.end() && found->second->get() == &file) drop(found->second, closing);
}

std::size_t FileCache::forget_removed() {
  Files kept;  // checked without the lock, as in open_anew
  {
    const std::lock_guard lock(mutex_);
    kept = files_;
  }
  std::size_t removed = 0;
  for (const auto& file : kept) {
    if (!file->is_removed()) continue;
    forget(*file);
    ++removed;
  }
  return removed;
}

void FileCache::forget_older_half() {
  Files closing;
  const std::lock_guard lock(mutex_);
  for (const std::size_t half = files_.size() / 2; files_.size() > half;) drop(std::prev(files_.end()), closing);
}

std::size_t FileCache::size() const {
  const std::lock_guard lock(mutex_);
  return files_.size();
}

void FileCache::clear() {
  Files closing;
  const std::lock_guard lock(mutex_);
  closing.swap(files_);
  by_path_.clear();
}

std::int64_t checksum_of_tail(const File& file, std::int64_t size) {
  constexpr std::int64_t tail_bytes = 4096;
  std::array<unsigned char, tail_bytes> bytes;
  const auto wanted = static_cast<std::size_t>(std::min(tail_bytes, size));
  if (file.read_some(bytes.data(), wanted, size - static_cast<std::int64_t>(wanted)) < wanted) return unknown_tail;
  std::uint32_t crc = 0xFFFFFFFF;
  for (std::size_t i = 0; i < wanted; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
  }
  return static_cast<std::int64_t>(crc ^ 0xFFFFFFFF);
}

}  // namespace modyn
