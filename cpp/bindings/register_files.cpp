#include <memory>

#include "bindings.hpp"
#include "modyn/mapping.hpp"
#include "modyn/small_files.hpp"

namespace modyn::bindings {
namespace {

py::tuple stat_and_read(const py::sequence& path_objects, const py::sequence& number_path_objects, bool floats, std::size_t num_threads) {
  const auto paths = to_paths(path_objects);
  const auto number_paths = to_paths(number_path_objects);
  SmallFiles found;
  {
    const py::gil_scoped_release release;  // two or more system calls for each file
    found = stat_and_read_numbers(paths, number_paths, floats, num_threads);
  }
  py::dict problems;
  for (const auto& problem : found.problems) {
    problems[py::int_(problem.position)] = py::make_tuple(from_path(problem.path), from_text(problem.reason));
  }
  py::object numbers = floats ? py::object(to_array(std::move(found.float_numbers))) : py::object(to_array(std::move(found.int_numbers)));
  return py::make_tuple(to_array(std::move(found.sizes)), to_array(std::move(found.modification_times)), numbers, problems);
}

py::array_t<std::uint8_t> map_file(const py::object& path) {
  auto mapping = std::make_unique<Mapping>(to_path(path));
  const std::uint8_t* data = mapping->data();
  const auto size = static_cast<py::ssize_t>(mapping->size());
  const py::capsule owner(mapping.get(), [](void* mapped) { delete static_cast<Mapping*>(mapped); });
  mapping.release();
  py::array_t<std::uint8_t> array(size, data, owner);
  array.attr("flags").attr("writeable") = false;  // a write would end the process
  return array;
}

}  // namespace

void register_files(py::module_& module) {
  module.def("stat_and_read_numbers", &stat_and_read, py::arg("paths"), py::arg("number_paths"), py::arg("floats"),
             py::arg("num_threads") = 1);
  module.def("map_file", &map_file, py::arg("path"));
}

}  // namespace modyn::bindings
