// Errors of the core. The bindings turn each type into one Python exception.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace modyn {

// The arguments are invalid, independently of the state of the files.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

enum class FileFault { vanished, truncated, changed, permission, outside, unreadable };

// Requested bytes of a file cannot be read. `available`: number of bytes from `offset` on; -1 if unknown.
class FileError : public std::runtime_error {
 public:
  FileError(FileFault fault, std::string path, std::int64_t offset, std::int64_t wanted, std::int64_t available,
            int error_number);

  FileFault fault;
  std::string path;
  std::int64_t offset;
  std::int64_t wanted;
  std::int64_t available;
  int error_number;
};

// Makes the FileError for the errno of a failed system call on `path`.
FileError file_error(int error_number, const std::string& path, std::int64_t offset, std::int64_t wanted);

// A file of the sample index was truncated while it was mapped.
class MapCut : public std::runtime_error {
 public:
  MapCut() : std::runtime_error("a file of the sample index was cut after it was opened; `modyn data scrub` names it") {}
};

// A row of a CSV file does not match its declaration. Rows are counted from 1, without the skipped first line and empty lines.
class CsvError : public std::runtime_error {
 public:
  CsvError(std::string path, std::int64_t line, std::int64_t row, std::int64_t offset, const std::string& problem);

  std::string path;
  std::int64_t line;  // from 1, like row
  std::int64_t row;   // without the first line that names columns, and empty lines
  std::int64_t offset;
};

}  // namespace modyn
