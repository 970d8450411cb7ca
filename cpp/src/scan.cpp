#include "modyn/scan.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>
#include <mutex>
#include <system_error>
#include <tuple>
#include <unordered_set>

#include "modyn/errors.hpp"
#include "modyn/file.hpp"
#include "modyn/numbers.hpp"
#include "modyn/parallel.hpp"
#include "modyn/text.hpp"
#include "modyn/unpacked.hpp"

namespace modyn {
namespace {

constexpr ssize_t longest_number = 128;

std::string joined(const std::string& folder, std::string_view name) {
  if (folder.empty()) return std::string(name);
  std::string path;
  path.reserve(folder.size() + 1 + name.size());
  path.append(folder).append(1, '/').append(name);
  return path;
}

bool ends_with(std::string_view name, std::string_view ending) {
  return name.size() >= ending.size() && name.substr(name.size() - ending.size()) == ending;
}

struct CloseFolder {
  void operator()(DIR* stream) const { ::closedir(stream); }
};

// Reads up to `size` bytes from the start of a file. Returns the number read, or -1 with errno set.
ssize_t read_start(const std::string& path, const Roots& roots, char* into, std::size_t size) {
  const int descriptor = open_to_read(path, roots);
  if (descriptor < 0) return -1;
  ssize_t got;
  do {
    got = ::read(descriptor, into, size);
  } while (got < 0 && errno == EINTR);
  const int error_number = errno;
  ::close(descriptor);
  errno = error_number;
  return got;
}

// Returns why the label cannot be read; empty if it can.
std::string read_label(const std::string& path, const Roots& roots, bool floats, std::int64_t& label) {
  char text[longest_number + 1];
  const ssize_t got = read_start(path, roots, text, sizeof(text));
  if (got < 0 && errno == EXDEV) return "it lies outside the folders that storage may read; see storage.dataset_roots";
  if (got < 0) return std::generic_category().message(errno);
  std::string_view number(text, static_cast<std::size_t>(got));
  if (number.substr(0, byte_order_mark.size()) == byte_order_mark) number.remove_prefix(byte_order_mark.size());
  std::string problem = parse_label(number, floats, label);
  if (problem.empty() && got > longest_number) problem = "is longer than any number";
  return problem.empty() ? problem : "its content " + problem + "; write one number into it";
}

// Calls work(first, last) for blocks of [0, count).
template <typename Work>
void for_blocks(std::size_t count, std::size_t threads, const Work& work) {
  constexpr std::size_t size = 256;
  parallel_for((count + size - 1) / size, threads, [&](std::size_t i) { work(i * size, std::min(count, (i + 1) * size)); });
}

}  // namespace

FolderScan::FolderScan(std::string base, std::string ending, std::string companion_ending, std::size_t threads, const KnownFiles& known,
                       FolderWatch* watch, bool packed)
    : base_(std::move(base)),
      ending_(std::move(ending)),
      companion_ending_(std::move(companion_ending)),
      threads_(threads),
      known_(known),
      watch_(watch),
      packed_(packed),
      met_(known.size()) {}

bool FolderScan::is_wanted(std::string_view name) const {
  return ends_with(name, ending_) || (packed_ && ends_with(without_packed_ending(name), ending_));
}

void FolderScan::enter(const std::string& path) {
  std::vector<std::string> pending;
  enter_one(path, 0, pending);
  while (!pending.empty()) {
    const std::string folder = std::move(pending.back());
    pending.pop_back();
    enter_one(folder, O_NOFOLLOW, pending);  // it was a folder when it was listed: a link that replaced it is not followed
  }
}

void FolderScan::enter_one(const std::string& path, int flags, std::vector<std::string>& folders) {
  const std::string full = path.empty() ? base_ : joined(base_, path);
  const int descriptor = ::open(full.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
  const std::unique_ptr<DIR, CloseFolder> stream(descriptor < 0 ? nullptr : ::fdopendir(descriptor));
  if (!stream) {
    const int error_number = errno;
    if (descriptor >= 0) ::close(descriptor);
    if (error_number != ENOENT && error_number != ENOTDIR) refused_.push_back({path, error_number});
    if (path.empty() && watch_ != nullptr) watch_->end();  // no watched folder can report that the base becomes readable
    return;
  }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return refused_.push_back({path, errno});
  if (!entered_.emplace(status.st_dev, status.st_ino).second) return;
  if (watch_ != nullptr) watch_->add(descriptor, path);
  look_at_files(descriptor, path, read_entries(stream.get(), path, folders));
}

std::vector<std::string> FolderScan::read_entries(DIR* stream, const std::string& path, std::vector<std::string>& folders) {
  std::vector<std::string> files;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream);
    if (entry == nullptr) {
      if (errno != 0) refused_.push_back({path, errno});
      return files;
    }
    const std::string_view name(entry->d_name);
    if (name == "." || name == "..") continue;
    unsigned char type = entry->d_type;
    if (type == DT_UNKNOWN) {  // some file systems do not report the type
      struct stat status {};
      if (::fstatat(::dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT) refused_.push_back({joined(path, name), errno});
        continue;
      }
      type = S_ISDIR(status.st_mode) ? DT_DIR : S_ISLNK(status.st_mode) ? DT_LNK : S_ISREG(status.st_mode) ? DT_REG : DT_UNKNOWN;
    }
    if (type == DT_DIR) {
      folders.push_back(joined(path, name));
    } else if (type == DT_LNK) {
      links_.push_back(joined(path, name));
    } else if (type == DT_REG && is_wanted(name)) {  // opening a pipe or a device may block
      files.emplace_back(name);
    }
  }
}

void FolderScan::look_at(const std::vector<std::string>& paths) {
  std::vector<const std::string*> files;
  for (const auto& path : paths) {
    const auto id = known_.find(path);
    if (id != KnownFiles::unknown) asked_.push_back(id);
    struct stat status {};
    if (::fstatat(AT_FDCWD, joined(base_, path).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno != ENOENT && errno != ENOTDIR) refused_.push_back({path, errno});
    } else if (S_ISDIR(status.st_mode)) {
      enter(path);
    } else if (S_ISLNK(status.st_mode)) {
      links_.push_back(path);
    } else if (S_ISREG(status.st_mode)) {
      if (status.st_nlink > 1) has_other_names_ = true;  // any ending counts: a collected file may be another name of it
      if (is_wanted(path)) files.push_back(&path);
    }
  }
  std::unordered_set<std::string_view> met;  // found in folders of `paths`; views, because `files_` does not change meanwhile
  for (const auto& file : files_) met.insert(file.path);
  std::vector<FoundFile> found;
  for (const auto* path : files) {
    if (!met.insert(*path).second) continue;
    const auto slash = path->rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path->substr(0, slash);
    const int descriptor = ::open(folder.empty() ? base_.c_str() : joined(base_, folder).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) continue;  // it has disappeared since
    look_at_file(descriptor, folder, path->substr(slash == std::string::npos ? 0 : slash + 1), found, refused_);
    ::close(descriptor);
  }
  std::move(found.begin(), found.end(), std::back_inserter(files_));
  end_watch_of_other_names();
}

void FolderScan::end_watch_of_other_names() {
  if (watch_ != nullptr && has_other_names_) watch_->end();
}

void FolderScan::look_at_file(int descriptor, const std::string& path, const std::string& name, std::vector<FoundFile>& files,
                              std::vector<Refused>& refused) {
  struct stat status {};
  if (::fstatat(descriptor, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno != ENOENT) refused.push_back({joined(path, name), errno});
    return;
  }
  if (!S_ISREG(status.st_mode)) return;  // replaced since it was listed
  if (status.st_nlink > 1) has_other_names_ = true;
  const std::int64_t modified = nanoseconds(status.st_mtim);
  std::string whole = joined(path, name);
  const auto id = known_.find(whole);
  if (id != KnownFiles::unknown) {
    met_[static_cast<std::size_t>(id)].store(true, std::memory_order_relaxed);
    if (known_.is_as_indexed(static_cast<std::size_t>(id), status.st_size, modified)) return;
  }
  std::int64_t changed = modified;
  if (!companion_ending_.empty()) {
    const std::string companion = name.substr(0, name.size() - ending_.size()) + companion_ending_;
    struct stat companion_status {};
    const bool found = ::fstatat(descriptor, companion.c_str(), &companion_status, 0) == 0;
    changed = found ? std::max(modified, nanoseconds(companion_status.st_mtim)) : no_companion;
  }
  files.push_back({std::move(whole), status.st_size, modified, changed});
}

void FolderScan::look_at_files(int descriptor, const std::string& path, const std::vector<std::string>& names) {
  std::mutex merging;  // for files_ and refused_
  for_blocks(names.size(), threads_, [&](std::size_t first, std::size_t last) {
    std::vector<FoundFile> files;
    std::vector<Refused> refused;
    for (std::size_t i = first; i < last; ++i) look_at_file(descriptor, path, names[i], files, refused);
    const std::lock_guard lock(merging);
    std::move(files.begin(), files.end(), std::back_inserter(files_));
    std::move(refused.begin(), refused.end(), std::back_inserter(refused_));
  });
  end_watch_of_other_names();
}

std::vector<FoundFile> FolderScan::take_files(std::size_t max_files) {
  if (!in_order_) {
    std::sort(files_.begin(), files_.end(), [](const FoundFile& a, const FoundFile& b) {
      return std::tie(b.modification_time, b.path) < std::tie(a.modification_time, a.path);  // the first ones are taken from the end
    });
    in_order_ = true;
  }
  const auto from = files_.end() - static_cast<std::ptrdiff_t>(std::min(max_files, files_.size()));
  std::vector<FoundFile> taken(std::make_move_iterator(from), std::make_move_iterator(files_.end()));
  files_.erase(from, files_.end());
  std::reverse(taken.begin(), taken.end());
  return taken;
}

std::vector<std::int64_t> FolderScan::absent(bool of_all) const {
  std::vector<std::int64_t> ids;
  const auto add = [&](std::int64_t id) {
    if (!met_[static_cast<std::size_t>(id)].load(std::memory_order_relaxed)) ids.push_back(id);
  };
  if (of_all) {
    for (std::size_t id = 0; id < met_.size(); ++id) add(static_cast<std::int64_t>(id));
  } else {
    for (const auto id : asked_) add(id);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  }
  return ids;
}

std::vector<std::string> FolderScan::take_links() {
  std::sort(links_.begin(), links_.end());
  return std::exchange(links_, {});
}

std::vector<Refused> FolderScan::take_refused() {
  std::sort(refused_.begin(), refused_.end(), [](const Refused& a, const Refused& b) { return a.path < b.path; });
  return std::exchange(refused_, {});
}

SmallFiles stat_and_read_numbers(const std::vector<std::string>& paths, std::size_t ending_size, const std::string& number_ending, bool floats,
                                 const Roots& roots, std::size_t threads) {
  for (const auto& path : paths) {
    if (path.size() < ending_size) throw InvalidArgument(path + " is shorter than the ending that its name should have");
  }
  SmallFiles found;
  for (auto* column : {&found.sizes, &found.modification_times, &found.numbers}) column->resize(paths.size());
  std::mutex problems_mutex;
  const auto add_problem = [&](std::size_t i, const std::string& path, std::string reason) {
    const std::lock_guard lock(problems_mutex);
    found.problems.push_back({i, path, std::move(reason)});
  };
  const auto look = [&](std::size_t i) {
    struct stat status {};
    if (::stat(paths[i].c_str(), &status) != 0) return add_problem(i, paths[i], std::generic_category().message(errno));
    if (!S_ISREG(status.st_mode)) return add_problem(i, paths[i], "it is not a regular file");
    if (status.st_size == 0) return add_problem(i, paths[i], "it is empty");
    // The file's bytes are read much later, for a training. Checking the permission bits needs no further call. Only an access control list
    // could still deny the read; the training then reports this.
    constexpr mode_t all_may_read = S_IRUSR | S_IRGRP | S_IROTH;
    if ((status.st_mode & all_may_read) != all_may_read && ::faccessat(AT_FDCWD, paths[i].c_str(), R_OK, AT_EACCESS) != 0) {
      return add_problem(i, paths[i], std::generic_category().message(errno));
    }
    found.sizes[i] = status.st_size;
    found.modification_times[i] = nanoseconds(status.st_mtim);
    const std::string number_path = paths[i].substr(0, paths[i].size() - ending_size) + number_ending;
    std::string problem = read_label(number_path, roots, floats, found.numbers[i]);
    if (!problem.empty()) add_problem(i, number_path, std::move(problem));
  };
  for_blocks(paths.size(), threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) look(i);
  });
  std::sort(found.problems.begin(), found.problems.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
  return found;
}

}  // namespace modyn
