#include <vector>

#include "bindings.hpp"
#include "modyn/checksum.hpp"

namespace modyn::bindings {
namespace {

// Holds the contiguous memory of a Python object for its own lifetime.
class Held {
 public:
  explicit Held(const py::handle& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { PyBuffer_Release(&view_); }

  const void* data() const { return view_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

std::uint64_t checksum_of(const py::args& parts) {
  std::vector<std::unique_ptr<Held>> held;
  held.reserve(parts.size());
  for (const auto& part : parts) held.push_back(std::make_unique<Held>(part));
  return without_gil([&] {  // reads all bytes
    Checksum checksum;
    for (const auto& part : held) checksum.add(part->data(), part->size());
    return checksum.value();
  });
}

}  // namespace

void register_checksum(py::module_& module) { module.def("checksum", &checksum_of); }

}  // namespace modyn::bindings
