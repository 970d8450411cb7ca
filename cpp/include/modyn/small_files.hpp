// Datasets of one sample a file: size and time of each file, and the number in its label file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace modyn {

struct SmallFiles {
  struct Problem {
    std::size_t position;
    std::string path;  // the file at fault
    std::string reason;
  };
  std::vector<std::int64_t> sizes;               // bytes
  std::vector<std::int64_t> modification_times;  // nanoseconds since 1970
  std::vector<std::int64_t> int_numbers;         // one of the two is filled
  std::vector<double> float_numbers;
  std::vector<Problem> problems;  // in order of position; the columns mean nothing there
};

// Looks at each of `paths` and reads the one number that the file beside it holds: its name has `number_ending` in place of the last
// `ending_size` bytes. A file that is missing, empty, not a regular file, or not a number is a problem of its position only. Throws
// InvalidArgument if a path is shorter than `ending_size`.
SmallFiles stat_and_read_numbers(const std::vector<std::string>& paths, std::size_t ending_size, const std::string& number_ending, bool floats,
                                 std::size_t threads);

}  // namespace modyn
