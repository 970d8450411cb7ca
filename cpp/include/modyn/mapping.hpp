// A read-only map of a whole file. Only for files that Modyn wrote and never changes: a map of a file that is cut kills the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace modyn {

class Mapping {
 public:
  // Throws FileError. Keeps no file descriptor: an index has more segments than a process may have open files.
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(address_); }
  std::size_t size() const { return size_; }

 private:
  void* address_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace modyn
