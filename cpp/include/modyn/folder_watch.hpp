// What changed below a folder since it was scanned, as the kernel reports it (inotify).
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace modyn {

// Watches folders, and so the files in them. It knows nothing of writes by a memory map, nor of those by another name of a file (hard link),
// with which `FolderScan` ends it, nor of those of other machines: a file system that others may write to is not watched at all.
class FolderWatch {
 public:
  FolderWatch();
  ~FolderWatch();
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  // Watches an open folder from now on; `path`: of it, below the base. One that cannot be watched ends the watch.
  void add(int descriptor, const std::string& path);
  // Whether changes are reported without a gap, as far as is known without asking.
  bool holds() const { return descriptor_ >= 0; }
  // Paths below the base of what changed, appeared or went since the last call, sorted: files of any name, and folders that appeared. Nothing if
  // the watch has ended: all has to be scanned again, with a new watch.
  std::optional<std::vector<std::string>> take();
  void end();

 private:
  int descriptor_;
  std::unordered_map<int, std::string> folders_;
};

}  // namespace modyn
