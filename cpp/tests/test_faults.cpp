// File errors that a test cannot cause itself: this file replaces the system calls that read files.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/scan.hpp"
#include "testing.hpp"

namespace {

// The errno with which the calls of this thread fail; 0: they are executed.
struct Faults {
  std::function<int(std::int64_t begin, std::int64_t end)> read;
  std::function<int()> look;
  int resident = 0;
  std::function<void(const char* name)> after_listing;
};
thread_local Faults* faults = nullptr;

class WithFaults {
 public:
  explicit WithFaults(Faults& answers) { faults = &answers; }
  ~WithFaults() { faults = nullptr; }
};

template <typename Call>
Call* real(const char* name) {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

int failed(int error_number) {
  errno = error_number;
  return -1;
}

}  // namespace

extern "C" {

ssize_t pread(int descriptor, void* into, size_t size, off_t offset) {
  static auto* const next = real<ssize_t(int, void*, size_t, off_t)>("pread");
  const int error_number = faults && faults->read ? faults->read(offset, offset + static_cast<off_t>(size)) : 0;
  return error_number != 0 ? failed(error_number) : next(descriptor, into, size, offset);
}

ssize_t preadv2(int descriptor, const iovec* into, int count, off_t offset, int flags) {
  static auto* const next = real<ssize_t(int, const iovec*, int, off_t, int)>("preadv2");
  return faults && faults->resident != 0 ? failed(faults->resident) : next(descriptor, into, count, offset, flags);
}

int fstat(int descriptor, struct stat* status) noexcept {
  static auto* const next = real<int(int, struct stat*)>("fstat");
  const int error_number = faults && faults->look ? faults->look() : 0;
  return error_number != 0 ? failed(error_number) : next(descriptor, status);
}

dirent* readdir(DIR* stream) {
  static auto* const next = real<dirent*(DIR*)>("readdir");
  dirent* const entry = next(stream);
  if (entry != nullptr && faults && faults->after_listing) faults->after_listing(entry->d_name);
  return entry;
}

}  // extern "C"

namespace {

using Rows = std::vector<std::pair<std::int64_t, std::int64_t>>;  // offset, length

// Reads rows of one file, on this thread.
std::string gather(const std::string& path, const Rows& rows, modyn::FileCache& cache, std::vector<modyn::FileStamp> stamps = {}) {
  Records records{{path}};
  records.stamps = std::move(stamps);
  for (const auto& [offset, length] : rows) records.add(0, offset, length);
  return records.gather(1, cache);
}

// Enough small rows for a map.
Rows many_rows(std::int64_t size) {
  Rows rows;
  for (std::int64_t offset = 0; offset < size; offset += 10) rows.emplace_back(offset, 10);
  return rows;
}

}  // namespace

TEST_CASE("a bad sector fails the record that lies on it, and no other") {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "0123456789abcdefghij");
  constexpr std::int64_t bad = 7;
  Faults answers;
  answers.read = [](std::int64_t begin, std::int64_t end) { return begin <= bad && bad < end ? EIO : 0; };
  const WithFaults with(answers);
  modyn::FileCache cache(3);
  CHECK(gather(path, {{10, 3}, {0, 4}, {8, 2}}, cache) == "abc012389");  // the unreadable bytes are in a gap
  CHECK(gather(path, {{0, 4}, {4, 3}, {8, 2}}, cache) == "012345689");
  for (const Rows& rows : {Rows{{0, 4}, {4, 6}, {10, 3}}, Rows{{10, 3}, {4, 6}}, Rows{{4, 6}}}) {
    const auto error = thrown_by<modyn::FileError>([&] { gather(path, rows, cache); });
    CHECK(error.fault == modyn::FileFault::unreadable);
    CHECK(error.error_number == EIO);
    CHECK(error.offset == 4);
    CHECK(error.wanted == 6);
  }
}

TEST_CASE("a file that its server no longer knows is opened again, once") {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "0123456789");
  modyn::FileCache cache(3);
  const auto stale = cache.open(path);
  int turns = 0;
  Faults answers;
  answers.read = [&](std::int64_t, std::int64_t) { return turns++ == 0 ? ESTALE : 0; };
  const WithFaults with(answers);
  CHECK(gather(path, {{2, 3}}, cache) == "234");
  CHECK(cache.open(path) != stale);
  answers.read = [](std::int64_t, std::int64_t) { return ESTALE; };
  const auto error = thrown_by<modyn::FileError>([&] { gather(path, {{2, 3}}, cache); });
  CHECK(error.error_number == ESTALE);
  CHECK(error.offset == 2);
}

TEST_CASE("where a file cannot be looked at, the error names a record") {
  const TemporaryFolder folder;
  const auto path = folder.write("a", std::string(1000, 'a'));
  const modyn::FileStamp stamp = modyn::File(path).stamp();
  for (const Rows& rows : {Rows{{30, 10}}, many_rows(1000)}) {  // by reading, and from a map
    modyn::FileCache cache(3);
    const std::string content(rows.size() * 10, 'a');
    CHECK(gather(path, rows, cache, {stamp}) == content);
    Faults answers;
    answers.look = [] { return EIO; };
    const WithFaults with(answers);
    const auto error = thrown_by<modyn::FileError>([&] { gather(path, rows, cache, {stamp}); });
    CHECK(error.error_number == EIO);
    CHECK(error.offset == rows[0].first);
    CHECK(error.wanted == 10);
    int looks = 0;
    answers.look = [&] { return looks++ == 0 ? ESTALE : 0; };
    CHECK(gather(path, rows, cache, {stamp}) == content);
  }
  Faults answers;
  answers.look = [] { return EIO; };
  const WithFaults with(answers);
  CHECK(thrown_by<modyn::FileError>([&] { modyn::File{path}; }).error_number == EIO);
}

TEST_CASE("where the system cannot determine whether a byte is in memory, it is taken to be") {
  const TemporaryFolder folder;
  const modyn::File file(folder.write("a", "0123456789"));
  Faults answers;
  const WithFaults with(answers);
  for (const int error_number : {EOPNOTSUPP, ENOSYS, EINVAL, EPERM}) {
    answers.resident = error_number;
    CHECK(file.is_resident(3));
  }
  for (const int error_number : {EAGAIN, EIO}) {
    answers.resident = error_number;
    CHECK_FALSE(file.is_resident(3));
  }
}

TEST_CASE("a folder that becomes a link while it is scanned is not followed") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.at("base/sub"));
  std::filesystem::create_directories(folder.at("outside"));
  folder.write("outside/secret.x", "1");
  Faults answers;
  answers.after_listing = [&](const std::string& name) {
    if (name != "sub") return;
    std::filesystem::remove(folder.at("base/sub"));
    std::filesystem::create_directory_symlink(folder.at("outside"), folder.at("base/sub"));
  };
  const modyn::KnownFiles none;
  modyn::FolderScan scan(folder.at("base"), ".x", "", 1, none);
  {
    const WithFaults with(answers);
    scan.enter("");
  }
  CHECK(scan.take_files(100).empty());
  CHECK(scan.take_refused().empty());
  scan.enter("sub");  // the scan follows a link only if the caller enters it
  CHECK(scan.take_files(100).size() == 1);
}

TEST_CASE("files that are only kept make room where no more can be opened") {
  const TemporaryFolder folder;
  modyn::FileCache cache(100);
  for (int i = 0; i < 10; ++i) cache.open(folder.write(std::to_string(i), "x"));
  const auto held = cache.open(folder.write("held", "x"));
  const auto path = folder.write("new", "y");
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{128, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  std::vector<int> others;
  for (int other; (other = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) others.push_back(other);
  CHECK(gather(path, {{0, 1}}, cache) == "y");
  CHECK(cache.size() == 6);
  CHECK(cache.open(held->path()) == held);  // still kept: it was used last
  for (int other; (other = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) others.push_back(other);
  modyn::FileCache empty(100);
  const auto error = thrown_by<modyn::FileError>([&] { gather(path, {{0, 1}}, empty); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  for (const int other : others) ::close(other);
  CHECK(std::string(error.what()).find("`ulimit -n`") != std::string::npos);
}

TEST_CASE("a file of a lower layer of overlayfs that is written") {
  const TemporaryFolder folder;
  bool mounted = false;
  std::string found;
  // On a thread of its own: its mounts are invisible elsewhere, and disappear with it.
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
    if (::mount("tmpfs", folder.at("").c_str(), "tmpfs", 0, nullptr) != 0) return;
    for (const char* layer : {"lower", "upper", "work", "all"}) std::filesystem::create_directory(folder.at(layer));
    folder.write("lower/a", std::string(1000, 'o'));
    const std::string layers = "lowerdir=" + folder.at("lower") + ",upperdir=" + folder.at("upper") + ",workdir=" + folder.at("work");
    if (::mount("overlay", folder.at("all").c_str(), "overlay", 0, layers.c_str()) != 0) return;
    mounted = true;
    modyn::FileCache cache(3);
    gather(folder.at("all/a"), many_rows(1000), cache);
    folder.write("all/a", std::string(2000, 'n'));
    found = gather(folder.at("all/a"), many_rows(2000), cache);
    cache.clear();
    ::umount2(folder.at("all").c_str(), MNT_DETACH);
    ::umount2(folder.at("").c_str(), MNT_DETACH);
  }).join();
  if (!mounted) {
    MESSAGE("skipped: overlayfs cannot be mounted here");
    return;
  }
  CHECK((found == std::string(2000, 'n')));
}
