// Conversions between Python and the core that several registering functions share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "modyn/buffers.hpp"
#include "modyn/errors.hpp"

namespace modyn::bindings {

namespace py = pybind11;

// Converts a str, bytes or os.PathLike into the bytes of a path, even if the name is not valid UTF-8.
inline std::string to_path(const py::handle& object) {
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(object.ptr(), &encoded) == 0) throw py::error_already_set();
  const auto bytes = py::reinterpret_steal<py::bytes>(encoded);
  return std::string(bytes);
}

inline std::vector<std::string> to_paths(const py::sequence& objects) {
  std::vector<std::string> paths;
  paths.reserve(objects.size());
  for (const auto& object : objects) paths.push_back(to_path(object));
  return paths;
}

inline py::str from_path(const std::string& path) {
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

// Converts text of unknown encoding into text that a person can read.
inline py::str from_text(const std::string& text) {
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// Makes an array over memory that `owner` keeps, without a copy. The array takes over `owner`.
template <typename T, typename Owner>
py::array_t<T> array_over(const T* data, std::size_t size, Owner&& owner) {
  auto held = std::make_unique<Owner>(std::move(owner));
  const py::capsule base(held.get(), [](void* pointer) { delete static_cast<Owner*>(pointer); });
  held.release();
  return py::array_t<T>(static_cast<py::ssize_t>(size), data, base);
}

template <typename T>
py::array_t<T> to_array(std::vector<T>&& values) {
  return array_over(values.data(), values.size(), std::move(values));
}

// Converts labels of a dataset; float64 labels are passed as their bits.
inline py::array to_labels(std::vector<std::int64_t>&& values, bool floats) {
  py::array labels = to_array(std::move(values));
  return floats ? labels.view("float64") : labels;
}

// An array argument. No forcecast: numbers never wrap silently. An unaligned array is copied.
template <typename T>
using Array = py::array_t<T, py::array::c_style | py::detail::npy_api::NPY_ARRAY_ALIGNED_>;
using Int64Array = Array<std::int64_t>;

// Below this size, NumPy's own memory is as fast.
inline constexpr std::int64_t min_pooled_bytes = 64 << 10;

// Makes an uninitialised array. A large one uses a buffer of the pool, which gets it back with the last view.
template <typename T>
py::array_t<T> new_array(std::int64_t size) {
  const std::int64_t bytes = size * static_cast<std::int64_t>(sizeof(T));
  if (bytes < min_pooled_bytes) return py::array_t<T>(static_cast<py::ssize_t>(size));
  Buffer buffer = BufferPool::of_process().take(static_cast<std::size_t>(bytes));
  return array_over(reinterpret_cast<const T*>(buffer.get()), static_cast<std::size_t>(size), std::move(buffer));
}

// Returns the result of `run`, which is called without the GIL: it must touch no Python object. The caller must hold the arrays that it reads.
template <typename Run>
auto without_gil(const Run& run) {
  const py::gil_scoped_release release;
  return run();
}

// Makes an array of `size` values that `fill(values)` writes without the GIL.
template <typename T, typename Fill>
py::array_t<T> filled_array(std::int64_t size, const Fill& fill) {
  auto array = new_array<T>(size);
  T* const values = array.mutable_data();
  without_gil([&] { fill(values); });
  return array;
}

// Throws InvalidArgument unless `array` has one dimension and, if given, `count` entries.
inline void check_column(const py::array& array, const char* name, py::ssize_t count = -1) {
  if (array.ndim() != 1 || (count >= 0 && array.size() != count)) {
    throw InvalidArgument(std::string(name) + " must be an array of shape (" + (count < 0 ? "n" : std::to_string(count)) + ",)");
  }
}

template <typename T>
std::size_t size_of(const Array<T>& array) {
  return static_cast<std::size_t>(array.size());
}

void register_checksum(py::module_& module);
void register_files(py::module_& module);
void register_gather(py::module_& module);
void register_index(py::module_& module);
void register_selection(py::module_& module);
void register_strata(py::module_& module);
void register_strings(py::module_& module);
void register_times(py::module_& module);

}  // namespace modyn::bindings
