#include <string>

#include "bindings.hpp"
#include "modyn/errors.hpp"
#include "modyn/key_set.hpp"

namespace modyn::bindings {
namespace {

std::size_t num_keys(const Int64Array& keys) {
  if (keys.ndim() != 1) throw InvalidArgument("keys must have one dimension, not " + std::to_string(keys.ndim()));
  return static_cast<std::size_t>(keys.size());
}

KeySet of(const Int64Array& keys) {
  const std::size_t count = num_keys(keys);
  const py::gil_scoped_release release;  // a pass over the array, which this call holds
  return {keys.data(), count};
}

KeySet parsed(const py::bytes& content) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(content.ptr(), &data, &size) != 0) throw py::error_already_set();
  const py::gil_scoped_release release;  // bytes do not change, and this call holds them
  return KeySet::parsed(reinterpret_cast<const std::uint8_t*>(data), static_cast<std::size_t>(size));
}

py::bytes serialized(const KeySet& set) {
  std::vector<std::uint8_t> bytes;
  {
    const py::gil_scoped_release release;  // long for large sets
    bytes = set.serialized();
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::array_t<bool> contains(const KeySet& set, const Int64Array& keys) {
  const std::size_t count = num_keys(keys);
  auto found = new_array<bool>(keys.size());
  bool* into = found.mutable_data();
  {
    const py::gil_scoped_release release;  // a pass over the array, which this call holds
    set.contains(keys.data(), count, into);
  }
  return found;
}

Int64Array between(const KeySet& set, std::int64_t first, std::int64_t end) {
  std::vector<std::int64_t> keys;
  {
    const py::gil_scoped_release release;  // long for large sets
    keys = set.between(first, end);
  }
  return to_array(std::move(keys));
}

}  // namespace

void register_key_set(py::module_& module) {
  py::class_<KeySet>(module, "KeySet", py::is_final())
      .def(py::init(&of), py::arg("keys"))
      .def_static("parsed", &parsed, py::arg("content"))
      .def("serialized", &serialized)
      .def("__len__", &KeySet::size)
      .def("united", &KeySet::united, py::arg("other"), py::call_guard<py::gil_scoped_release>())
      .def("contains", &contains, py::arg("keys"))
      .def("between", &between, py::arg("first"), py::arg("end"));
}

}  // namespace modyn::bindings
