#include "modyn/small_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string_view>
#include <system_error>

#include "modyn/errors.hpp"
#include "modyn/file_time.hpp"
#include "modyn/numbers.hpp"
#include "modyn/parallel.hpp"

namespace modyn {
namespace {

constexpr std::size_t files_per_block = 256;
constexpr std::size_t longest_number = 128;

// Reads up to `size` bytes from the start of a file. Returns how many there were, or -1 with errno set.
ssize_t read_start(const char* path, char* into, std::size_t size) {
  int descriptor;
  do {
    descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not wait for its writer
  } while (descriptor < 0 && errno == EINTR);
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

// Empty, or why the number cannot be read.
template <typename Number, typename Parse>
std::string read_number(const std::string& path, Number& value, const Parse& parse, const char* wanted) {
  char text[longest_number + 1];
  const ssize_t got = read_start(path.c_str(), text, sizeof(text));
  if (got < 0) return std::generic_category().message(errno);
  const auto size = static_cast<std::size_t>(got);
  const Parsed parsed = size > longest_number ? Parsed::not_a_number : parse(std::string_view(text, size), value);
  if (parsed == Parsed::ok) return {};
  return "its content " + describe(parsed, std::string_view(text, size), wanted) + "; write one number into it";
}

}  // namespace

SmallFiles stat_and_read_numbers(const std::vector<std::string>& paths, std::size_t ending_size, const std::string& number_ending, bool floats,
                                 std::size_t threads) {
  for (const auto& path : paths) {
    if (path.size() < ending_size) throw InvalidArgument(path + " is shorter than the ending that its name should have");
  }
  SmallFiles found;
  found.sizes.resize(paths.size());
  found.modification_times.resize(paths.size());
  found.int_numbers.resize(floats ? 0 : paths.size());
  found.float_numbers.resize(floats ? paths.size() : 0);
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
    found.sizes[i] = status.st_size;
    found.modification_times[i] = nanoseconds(status.st_mtim);
    const std::string number_path = paths[i].substr(0, paths[i].size() - ending_size) + number_ending;
    std::string problem = floats ? read_number(number_path, found.float_numbers[i], parse_float64, "a float64 label")
                                 : read_number(number_path, found.int_numbers[i], parse_int64, "an int64 label");
    if (!problem.empty()) add_problem(i, number_path, std::move(problem));
  };
  const std::size_t blocks = (paths.size() + files_per_block - 1) / files_per_block;
  parallel_for(blocks, threads, [&](std::size_t block) {
    const std::size_t end = std::min(paths.size(), (block + 1) * files_per_block);
    for (std::size_t i = block * files_per_block; i < end; ++i) look(i);
  });
  std::sort(found.problems.begin(), found.problems.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
  return found;
}

}  // namespace modyn
