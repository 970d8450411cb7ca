// Sizes and times of many files: of the files below a folder, or of single-sample files, whose label file is read too.
#pragma once

#include <dirent.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "modyn/file.hpp"
#include "modyn/folder_watch.hpp"
#include "modyn/known_files.hpp"

namespace modyn {

struct FoundFile {
  std::string path;  // relative to the base, with / between folders
  std::int64_t size;               // bytes
  std::int64_t modification_time;  // nanoseconds since 1970
  // The later of its own and its companion's modification time; FolderScan::no_companion if the companion is missing.
  std::int64_t changed;
};

// A file or folder that could not be read, with the errno.
struct Refused {
  std::string path;
  int error_number;
};

// Collects the regular files below a folder whose names end with `ending`, except known files that are unchanged. Symbolic links are not
// followed but returned. Memory: about 100 bytes and the path for each collected file, one byte for each known file. Not safe to share
// between threads.
class FolderScan {
 public:
  static constexpr std::int64_t no_companion = INT64_MIN;

  // `companion_ending`: replaces `ending` in the name of each file's companion; empty if there is none. `known` must outlive the scan and not change
  // meanwhile. `watch`: watches all folders that are entered, before they are read; may be null. The watch ends if a file has several names (hard
  // links), because a write through another name is not reported. `packed`: also collect files whose names end with `ending` and the ending of a
  // compressed file; they have no companions.
  FolderScan(std::string base, std::string ending, std::string companion_ending, std::size_t threads, const KnownFiles& known,
             FolderWatch* watch = nullptr, bool packed = false);

  // Scans the folder `path` below the base ("": the base itself) and all folders in it. A folder is entered only once, even if several paths lead to
  // it. Files that disappear meanwhile are ignored.
  void enter(const std::string& path);
  // Scans only these paths: files, folders (which are entered), or missing paths. A file in one of these folders that is also among the paths
  // is returned once.
  void look_at(const std::vector<std::string>& paths);

  // Returns the next found files, in order of modification time, then path, at most `max_files`; none at the end. Nothing may be entered after
  // the first call.
  std::vector<FoundFile> take_files(std::size_t max_files);
  // Returns the paths of symbolic links found since the last call, sorted: if two links lead to one folder, the path of its files is that of
  // the first entered link, which must not depend on the listing order of the file system.
  std::vector<std::string> take_links();
  // Returns the ids of known files that were not found, ascending: of all known files, or only of those at paths given to `look_at`.
  std::vector<std::int64_t> absent(bool of_all) const;
  // Returns the files and folders that could not be read since the last call, sorted by path.
  std::vector<Refused> take_refused();

 private:
  // `flags`: additional flags for `open`. Like the next function, adds the paths of the subfolders to `folders`.
  void enter_one(const std::string& path, int flags, std::vector<std::string>& folders);
  // Names of the files with our ending.
  std::vector<std::string> read_entries(DIR* stream, const std::string& path, std::vector<std::string>& folders);
  void look_at_files(int descriptor, const std::string& path, const std::vector<std::string>& names);
  // Adds the file unless it is unchanged. `descriptor`: of its folder `path`.
  void look_at_file(int descriptor, const std::string& path, const std::string& name, std::vector<FoundFile>& files, std::vector<Refused>& refused);
  void end_watch_of_other_names();
  bool is_wanted(std::string_view name) const;

  std::string base_;
  std::string ending_;
  std::string companion_ending_;
  std::size_t threads_;
  const KnownFiles& known_;
  FolderWatch* watch_;
  bool packed_;
  std::vector<std::atomic<bool>> met_;  // by id; several threads set it
  std::vector<std::int64_t> asked_;     // ids
  std::set<std::pair<std::uint64_t, std::uint64_t>> entered_;  // device and inode
  std::atomic<bool> has_other_names_ = false;  // whether a met file has hard links; several threads set it
  std::vector<FoundFile> files_;
  bool in_order_ = false;  // whether files_ is sorted, in reverse order
  std::vector<std::string> links_;
  std::vector<Refused> refused_;
};

struct SmallFiles {
  struct Problem {
    std::size_t position;
    std::string path;  // the file at fault
    std::string reason;
  };
  std::vector<std::int64_t> sizes;               // bytes
  std::vector<std::int64_t> modification_times;  // nanoseconds since 1970
  std::vector<std::int64_t> numbers;             // float numbers as their bits
  std::vector<Problem> problems;  // in order of position; the columns are undefined there
};

// Reads the size and time of each of `paths`, and the number in its label file, which must be in `roots`. The name of the label file has
// `number_ending` instead of the last `ending_size` bytes. A file that is missing, empty, not regular, not a number or unreadable is a problem of
// its position only. Throws InvalidArgument if a path is shorter than `ending_size`.
SmallFiles stat_and_read_numbers(const std::vector<std::string>& paths, std::size_t ending_size, const std::string& number_ending, bool floats,
                                 const Roots& roots, std::size_t threads);

}  // namespace modyn
