// Choosing samples by strata. Array arguments are read without the GIL.
#include <pybind11/stl.h>

#include "bindings.hpp"
#include "modyn/strata.hpp"

namespace modyn::bindings {
namespace {

Values values_of(const Int64Array& array, const char* name) {
  check_column(array, name);
  return {array.data(), array.data() + array.size()};
}

bool add(ValueCounts& counts, const Int64Array& values) {
  check_column(values, "values");
  return without_gil([&] { return counts.add(values.data(), size_of(values)); });
}

py::tuple counts_of(const ValueCounts& counts) {
  auto [values, numbers] = counts.counts();
  return py::make_tuple(to_array(std::move(values)), to_array(std::move(numbers)));
}

StratifiedDraw draw_of(const Int64Array& values, const Int64Array& counts, const Int64Array& quotas, const Seed& seed) {
  return {values_of(values, "values"), values_of(counts, "counts"), values_of(quotas, "quotas"), seed};
}

Int64Array next(StratifiedDraw& draw, const Int64Array& values) {
  check_column(values, "values");
  return to_array(without_gil([&] { return draw.next(values.data(), size_of(values)); }));
}

}  // namespace

void register_strata(py::module_& module) {
  py::class_<ValueCounts>(module, "ValueCounts", py::is_final())
      .def(py::init<std::size_t>(), py::arg("most"))
      .def("add", &add, py::arg("values"))
      .def("counts", &counts_of);
  py::class_<StratifiedDraw>(module, "StratifiedDraw", py::is_final())
      .def(py::init(&draw_of), py::arg("values"), py::arg("counts"), py::arg("quotas"), py::arg("seed"))
      .def("next", &next, py::arg("values"));
}

}  // namespace modyn::bindings
