#include <pybind11/stl.h>

#include "bindings.hpp"
#include "modyn/errors.hpp"
#include "modyn/permutation.hpp"

namespace modyn::bindings {

void register_permutation(py::module_& module) {
  module.def(
      "permutation",
      [](const std::array<std::uint64_t, 4>& seed, std::int64_t count) {
        if (count < 0) throw InvalidArgument("there are no permutations of " + std::to_string(count) + " numbers");
        auto order = new_array<std::int64_t>(count);
        std::int64_t* into = order.mutable_data();
        {
          const py::gil_scoped_release release;
          permutation(seed, static_cast<std::size_t>(count), into);
        }
        return order;
      },
      py::arg("seed"), py::arg("count"));
}

}  // namespace modyn::bindings
