#include "modyn/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "modyn/errors.hpp"

namespace modyn {

Mapping::Mapping(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw file_error(errno, path, 0, 0);
  struct stat status {};
  int error_number = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  if (error_number == 0 && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    address_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (address_ == MAP_FAILED) error_number = errno;
  }
  ::close(descriptor);
  if (error_number != 0) throw file_error(error_number, path, 0, status.st_size);
}

Mapping::~Mapping() {
  if (size_ > 0) ::munmap(address_, size_);
}

}  // namespace modyn
