#include "bindings.hpp"
#include "modyn/key_set.hpp"

namespace modyn::bindings {
namespace {

KeySet key_set_of(const Int64Array& keys) {
  check_one_dimension(keys, "keys");
  return without_gil([&] { return KeySet(keys.data(), static_cast<std::size_t>(keys.size())); });
}

KeySet parsed(const py::bytes& content) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(content.ptr(), &data, &size) != 0) throw py::error_already_set();
  return without_gil([&] { return KeySet::parsed(reinterpret_cast<const std::uint8_t*>(data), static_cast<std::size_t>(size)); });
}

py::bytes serialized(const KeySet& set) {
  const auto bytes = without_gil([&] { return set.serialized(); });
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::array_t<bool> contains(const KeySet& set, const Int64Array& keys) {
  check_one_dimension(keys, "keys");
  return filled_array<bool>(keys.size(), [&](bool* found) { set.contains(keys.data(), static_cast<std::size_t>(keys.size()), found); });
}

Int64Array between(const KeySet& set, std::int64_t first, std::int64_t end) {
  return to_array(without_gil([&] { return set.between(first, end); }));
}

}  // namespace

void register_key_set(py::module_& module) {
  py::class_<KeySet>(module, "KeySet", py::is_final())
      .def(py::init(&key_set_of), py::arg("keys"))
      .def_static("parsed", &parsed, py::arg("content"))
      .def("serialized", &serialized)
      .def("__len__", &KeySet::size)
      .def("united", &KeySet::united, py::arg("other"), py::call_guard<py::gil_scoped_release>())
      .def("contains", &contains, py::arg("keys"))
      .def("between", &between, py::arg("first"), py::arg("end"));
}

}  // namespace modyn::bindings
