#include "modyn/errors.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

namespace modyn {
namespace {

std::string advice(int error_number) {
  if (error_number == EMFILE) return "let the process open more files (`ulimit -n`)";
  if (error_number == ENFILE) return "let the system open more files (`sysctl fs.file-max`)";
  return "check the disk and the file";
}

std::string message(FileFault fault, const std::string& path, std::int64_t offset, std::int64_t wanted, std::int64_t available,
                    int error_number) {
  const std::string place = path + " (" + std::to_string(wanted) + " bytes wanted at byte " + std::to_string(offset) + ")";
  switch (fault) {
    case FileFault::vanished:
      return "file vanished: " + place + "; restore it, or delete its samples";
    case FileFault::truncated:
      return "file is too short: " + place + ", " + std::to_string(available) + " available; it was cut after it was indexed: restore it, "
             "or take what it holds now with `modyn data reindex NAME FILE`";
    case FileFault::changed:
      return "file changed: " + place + " is not as it was when it was indexed: it was replaced, written again or touched since; "
             "ingest its dataset, which looks at it again";
    case FileFault::permission:
      return "no permission to read " + place + "; let the user of the service read it";
    case FileFault::outside:
      return place + " lies outside the folders that storage may read; move it there or add its folder to storage.dataset_roots";
    case FileFault::unreadable:
      break;
  }
  return "cannot read " + place + ": " + std::generic_category().message(error_number) + "; " + advice(error_number);
}

}  // namespace

FileError::FileError(FileFault fault_, std::string path_, std::int64_t offset_, std::int64_t wanted_, std::int64_t available_,
                     int error_number_)
    : std::runtime_error(message(fault_, path_, offset_, wanted_, available_, error_number_)),
      fault(fault_),
      path(std::move(path_)),
      offset(offset_),
      wanted(wanted_),
      available(available_),
      error_number(error_number_) {}

FileError file_error(int error_number, const std::string& path, std::int64_t offset, std::int64_t wanted) {
  FileFault fault = FileFault::unreadable;
  if (error_number == ENOENT || error_number == ENOTDIR) fault = FileFault::vanished;
  if (error_number == EACCES || error_number == EPERM) fault = FileFault::permission;
  if (error_number == EXDEV) fault = FileFault::outside;  // see `open_to_read`
  return {fault, path, offset, wanted, -1, error_number};
}

CsvError::CsvError(std::string path_, std::int64_t line_, std::int64_t row_, std::int64_t offset_, const std::string& problem)
    : std::runtime_error(path_ + ", line " + std::to_string(line_) + ", row " + std::to_string(row_) + " at byte " + std::to_string(offset_) + ": " +
                         problem),
      path(std::move(path_)),
      line(line_),
      row(row_),
      offset(offset_) {}

}  // namespace modyn
