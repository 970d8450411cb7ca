#include "modyn/folder_watch.hpp"

#include <sys/inotify.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace modyn {
namespace {

constexpr std::uint32_t of_files = IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE;
constexpr std::uint32_t ends_watch = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_Q_OVERFLOW | IN_IGNORED;

// File systems that only this kernel writes to: ext2 to ext4, XFS, Btrfs, tmpfs, F2FS, ZFS.
bool is_of_this_machine(int descriptor) {
  struct statfs found {};
  if (::fstatfs(descriptor, &found) != 0) return false;
  switch (static_cast<std::uint32_t>(found.f_type)) {
    case 0xEF53:
    case 0x58465342:
    case 0x9123683E:
    case 0x01021994:
    case 0xF2F52010:
    case 0x2FC12FC1:
      return true;
    default:
      return false;
  }
}

}  // namespace

FolderWatch::FolderWatch() : descriptor_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {}

FolderWatch::~FolderWatch() { end(); }

void FolderWatch::end() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  folders_.clear();
}

void FolderWatch::add(int descriptor, const std::string& path) {
  if (!holds()) return;
  // Watches by descriptor, because the path may name another folder by now.
  const std::string opened = "/proc/self/fd/" + std::to_string(descriptor);
  const int number = is_of_this_machine(descriptor)
                         ? ::inotify_add_watch(descriptor_, opened.c_str(), of_files | IN_DELETE_SELF | IN_MOVE_SELF | IN_EXCL_UNLINK | IN_ONLYDIR)
                         : -1;
  if (number < 0) return end();
  folders_[number] = path;
}

std::optional<std::vector<std::string>> FolderWatch::take() {
  std::vector<std::string> paths;
  alignas(inotify_event) char buffer[1 << 16];
  while (holds()) {
    const ssize_t got = ::read(descriptor_, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      std::sort(paths.begin(), paths.end());
      paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
      return paths;
    }
    if (got <= 0) break;
    for (ssize_t at = 0; at < got;) {
      const auto* const event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      const bool folder_went = (event->mask & IN_ISDIR) != 0 && (event->mask & (IN_MOVED_FROM | IN_DELETE)) != 0;
      const auto folder = folders_.find(event->wd);
      if (folder_went || (event->mask & ends_watch) != 0 || folder == folders_.end()) {
        end();
        return std::nullopt;
      }
      if (event->len == 0) continue;  // the folder itself has changed
      paths.push_back(folder->second.empty() ? event->name : folder->second + '/' + event->name);
    }
  }
  end();
  return std::nullopt;
}

}  // namespace modyn
