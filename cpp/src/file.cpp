#include "modyn/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "modyn/errors.hpp"

namespace modyn {
namespace {

FileStamp stamp_of(const struct stat& status) {
  return {status.st_size, std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

}  // namespace

FileMap::FileMap(int descriptor, std::size_t size) : address_(::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0)), size_(size) {
  if (address_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
}

FileMap::~FileMap() { ::munmap(address_, size_); }

File::File(std::string path) : path_(std::move(path)), descriptor_(-1), device_(0), inode_(0), stamp_at_opening_{} {
  do {
    // O_NONBLOCK: opening a named pipe must not wait for a writer. It means nothing for regular files.
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) throw file_error(errno, path_, 0, 0);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    const int error_number = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
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

std::shared_ptr<const FileMap> File::map(std::int64_t wanted) const {
  const std::lock_guard lock(map_mutex_);
  if (map_ && static_cast<std::int64_t>(map_->size()) >= wanted) return map_;
  const std::int64_t there = size();
  if (there == 0 || there < wanted) return nullptr;
  try {
    map_ = std::make_shared<const FileMap>(descriptor_, static_cast<std::size_t>(there));
  } catch (const std::system_error&) {
    return nullptr;  // no address space or no more maps for this process, or a file system that has none: pread does as well
  }
  return map_;
}

bool File::is_resident(std::int64_t offset) const {
  char byte;
  iovec into{&byte, 1};
  if (::preadv2(descriptor_, &into, 1, offset, RWF_NOWAIT) >= 0) return true;
  if (errno != EOPNOTSUPP) return false;
  // Some file systems cannot do this (tmpfs, NFS). mincore is the second choice: it says yes to everybody who may not write the file.
  const auto mapped = map(offset + 1);
  if (!mapped) return true;
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto* const byte_of_map = mapped->data() + static_cast<std::size_t>(offset) / page * page;
  unsigned char resident = 1;
  ::mincore(const_cast<std::uint8_t*>(byte_of_map), 1, &resident);
  return (resident & 1U) != 0;
}

std::int64_t File::size() const { return stamp().size; }

FileStamp File::stamp() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw file_error(errno, path_, 0, 0);
  return stamp_of(status);
}

bool File::is_current(FileStamp& now) const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0 || status.st_dev != device_ || status.st_ino != inode_) return false;
  now = stamp_of(status);
  return true;
}

std::shared_ptr<const File> FileCache::open(const std::string& path, FileStamp* now) {
  FileStamp current{};
  if (auto kept = find(path); kept && kept->is_current(current)) {
    if (now != nullptr) *now = current;
    return kept;
  }
  // Opened without the lock: a slow disk must not stop readers of other files. Two threads may open one file; the last one is kept.
  auto file = std::make_shared<const File>(path);
  keep(path, file);
  if (now != nullptr) *now = file->stamp_at_opening();
  return file;
}

std::shared_ptr<const File> FileCache::find(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = by_path_.find(path);
  if (found == by_path_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

void FileCache::keep(const std::string& path, std::shared_ptr<const File> file) {
  if (capacity_ == 0) return;
  std::shared_ptr<const File> replaced;
  std::list<Entry> evicted;  // declared before the lock: files close after it is released
  const std::lock_guard lock(mutex_);
  if (const auto found = by_path_.find(path); found != by_path_.end()) {
    replaced = std::exchange(found->second->second, std::move(file));
    entries_.splice(entries_.begin(), entries_, found->second);
    return;
  }
  entries_.emplace_front(path, std::move(file));
  by_path_.emplace(path, entries_.begin());
  if (entries_.size() > capacity_) {
    by_path_.erase(entries_.back().first);
    evicted.splice(evicted.begin(), entries_, std::prev(entries_.end()));
  }
}

std::size_t FileCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

void FileCache::clear() {
  std::list<Entry> closing;
  const std::lock_guard lock(mutex_);
  closing.swap(entries_);
  by_path_.clear();
}

}  // namespace modyn
