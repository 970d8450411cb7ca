#include <pybind11/stl.h>

#include "bindings.hpp"
#include "modyn/copy.hpp"
#include "modyn/permutation.hpp"

namespace modyn::bindings {
namespace {

template <typename T>
py::array_t<T> picked(const Array<T>& values, const Int64Array& rows) {
  check_one_dimension(values, "values");
  check_one_dimension(rows, "rows");
  return filled_array<T>(rows.size(), [&](T* into) {
    pick(values.data(), static_cast<std::size_t>(values.size()), rows.data(), static_cast<std::size_t>(rows.size()), into);
  });
}

py::array_t<std::int64_t> permuted(const std::array<std::uint64_t, 4>& seed, std::int64_t count, std::size_t threads) {
  if (count < 0) throw InvalidArgument("there are no permutations of " + std::to_string(count) + " numbers");
  return filled_array<std::int64_t>(count, [&](std::int64_t* into) { permutation(seed, static_cast<std::size_t>(count), into, threads); });
}

}  // namespace

void register_arrays(py::module_& module) {
  module.def("permutation", &permuted, py::arg("seed"), py::arg("count"), py::arg("threads"));
  module.def("pick", &picked<std::int64_t>, py::arg("values").noconvert(), py::arg("rows"));
  module.def("pick", &picked<float>, py::arg("values").noconvert(), py::arg("rows"));
}

}  // namespace modyn::bindings
