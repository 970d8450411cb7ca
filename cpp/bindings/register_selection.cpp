// Greedy choices of samples.
#include "bindings.hpp"
#include "modyn/nearest_gains.hpp"

namespace modyn::bindings {
namespace {

using FloatArray = Array<float>;
using DoubleArray = Array<double>;

std::unique_ptr<NearestGains> make_gains(const FloatArray& weights, const DoubleArray& first, std::size_t most_near) {
  check_column(weights, "weights");
  check_column(first, "first", weights.size());
  return std::make_unique<NearestGains>(weights.data(), first.data(), size_of(weights), most_near);
}

// A view that keeps its object alive and that Python cannot write to.
template <typename T>
py::array_t<T> view_of(const py::object& owner, const std::vector<T>& values) {
  py::array_t<T> view(static_cast<py::ssize_t>(values.size()), values.data(), owner);
  view.attr("setflags")(py::arg("write") = false);
  return view;
}

py::array_t<std::int64_t> choose(NearestGains& gains, const FloatArray& distances) {
  check_column(distances, "distances", static_cast<py::ssize_t>(gains.size()));
  return to_array(without_gil([&] { return gains.choose(distances.data()); }));
}

void update_rows(NearestGains& gains, const Int64Array& rows, const FloatArray& distances, const FloatArray& nearest) {
  check_column(rows, "rows");
  check_column(nearest, "nearest", rows.size());
  if (distances.ndim() != 2 || distances.shape(0) != rows.size() || distances.shape(1) != static_cast<py::ssize_t>(gains.size())) {
    throw InvalidArgument("distances must be an array of shape (" + std::to_string(rows.size()) + ", " + std::to_string(gains.size()) + ")");
  }
  without_gil([&] { gains.update_rows(rows.data(), size_of(rows), distances.data(), nearest.data()); });
}

}  // namespace

void register_selection(py::module_& module) {
  py::class_<NearestGains>(module, "NearestGains", py::is_final())
      .def(py::init(&make_gains), py::arg("weights"), py::arg("first"), py::arg("most_near"))
      .def_property_readonly("gains", [](const py::object& self) { return view_of(self, self.cast<const NearestGains&>().gains()); })
      .def_property_readonly("nearest", [](const py::object& self) { return view_of(self, self.cast<const NearestGains&>().nearest()); })
      .def("choose", &choose, py::arg("distances"))
      .def("update_rows", &update_rows, py::arg("rows"), py::arg("distances"), py::arg("nearest"));
}

}  // namespace modyn::bindings
