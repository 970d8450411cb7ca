// Changes below a folder since it was scanned, as the kernel reports them (inotify).
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace modyn {

// Watches folders and the files in them. It does not see writes through a memory map, writes through another name of a file (`FolderScan` ends
// the watch if it finds a hard link), or writes from other machines: file systems that other machines may write to are not watched.
class FolderWatch {
 public:
  FolderWatch();
  ~FolderWatch();
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  // Watches an open folder from now on. `path`: its path below the base. A folder that cannot be watched ends the watch.
  void add(int descriptor, const std::string& path);
  // Returns whether no change has been missed, as far as is known without a system call.
  bool holds() const { return descriptor_ >= 0; }
  // Returns the paths below the base that changed, appeared or disappeared since the last call, sorted: files of any name, and folders that
  // appeared. Returns nothing if the watch has ended: everything must be scanned again, with a new watch.
  std::optional<std::vector<std::string>> take();
  void end();

 private:
  int descriptor_;
  std::unordered_map<int, std::string> folders_;
};

}  // namespace modyn
