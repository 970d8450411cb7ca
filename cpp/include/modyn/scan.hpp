// Size and time of many files: of those below a folder, or of files that hold one sample each, with the number in the label file beside.
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
  // The later of its own modification time and its companion's; FolderScan::no_companion if that is not there.
  std::int64_t changed;
};

// Something that was not looked into, and the errno that says why.
struct Refused {
  std::string path;
  int error_number;
};

// Collects the regular files below a folder whose names end with `ending`, but for known ones that are as they were indexed. Symbolic links are
// not followed but handed out. About 100 bytes and the path for each file; nothing for files of other names, a byte for a known one. Not safe to
// share between threads.
class FolderScan {
 public:
  static constexpr std::int64_t no_companion = INT64_MIN;

  // `companion_ending`: of the name of the file that stands beside each of the files, in place of `ending`; empty if there is none.
  // `known` must outlive the scan and not change meanwhile. `watch`: of all folders that are entered, from before they are read; may be null. It
  // ends at a file that has several names (hard links): a write by one of them elsewhere is not reported. `packed`: also those whose names end
  // with `ending` and then as compressed files do; they have no companions.
  FolderScan(std::string base, std::string ending, std::string companion_ending, std::size_t threads, const KnownFiles& known,
             FolderWatch* watch = nullptr, bool packed = false);

  // Looks at the folder `path` below the base ("": the base itself) and all folders in it. A folder that was entered before, on whatever
  // path, is not entered again. What vanishes meanwhile is not there.
  void enter(const std::string& path);
  // Looks at these paths alone, which may be those of files, of folders, which are entered, or of nothing. A file that lies in one of these
  // folders and is among the paths too is handed out once.
  void look_at(const std::vector<std::string>& paths);

  // The next ones of those that were found, in order of modification time, then path, at most `max_files`; none at the end. Nothing is entered
  // after the first call.
  std::vector<FoundFile> take_files(std::size_t max_files);
  // Paths of the symbolic links that were met since the last call, sorted: of two that lead to one folder, the first that is entered names
  // its files, which must not depend on the order in which the file system lists them.
  std::vector<std::string> take_links();
  // Ids of known files that were not met, ascending: of all, or only of those at paths that `look_at` was given.
  std::vector<std::int64_t> absent(bool of_all) const;
  // What was refused since the last call, sorted by path.
  std::vector<Refused> take_refused();

 private:
  // `flags`: for `open`, in addition. Adds the paths of the folders in this one to `folders`, as the next one does.
  void enter_one(const std::string& path, int flags, std::vector<std::string>& folders);
  // Names of the files with our ending.
  std::vector<std::string> read_entries(DIR* stream, const std::string& path, std::vector<std::string>& folders);
  void look_at_files(int descriptor, const std::string& path, const std::vector<std::string>& names);
  // Adds the file unless it is as it was indexed; `descriptor`: of the folder `path` that it lies in.
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
  std::atomic<bool> has_other_names_ = false;  // a file that was met has hard links; several threads set it
  std::vector<FoundFile> files_;
  bool in_order_ = false;  // and reversed
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
  std::vector<std::int64_t> numbers;             // of float numbers the bits
  std::vector<Problem> problems;  // in order of position; the columns mean nothing there
};

// Looks at each of `paths` and reads the one number that the file beside it holds: its name has `number_ending` in place of the last
// `ending_size` bytes, and may lie in `roots` only. A file that is missing, empty, not a regular file, not a number, or that this process may not read
// is a problem of its position only. Throws InvalidArgument if a path is shorter than `ending_size`.
SmallFiles stat_and_read_numbers(const std::vector<std::string>& paths, std::size_t ending_size, const std::string& number_ending, bool floats,
                                 const Roots& roots, std::size_t threads);

}  // namespace modyn
