#include <cerrno>
#include <memory>

#include "bindings.hpp"
#include "modyn/errors.hpp"
#include "modyn/file.hpp"
#include "modyn/scan.hpp"

namespace modyn::bindings {
namespace {

py::tuple stat_and_read(const py::sequence& path_objects, std::size_t ending_size, const py::object& number_ending, bool floats,
                        std::size_t num_threads) {
  const auto paths = to_paths(path_objects);
  const std::string ending = to_path(number_ending);
  SmallFiles found = without_gil([&] { return stat_and_read_numbers(paths, ending_size, ending, floats, num_threads); });
  py::dict problems;
  for (const auto& problem : found.problems) {
    problems[py::int_(problem.position)] = py::make_tuple(from_path(problem.path), from_text(problem.reason));
  }
  py::object numbers = floats ? py::object(to_array(std::move(found.float_numbers))) : py::object(to_array(std::move(found.int_numbers)));
  return py::make_tuple(to_array(std::move(found.sizes)), to_array(std::move(found.modification_times)), numbers, problems);
}

py::array_t<std::uint8_t> map_file(const py::object& path) {
  const std::string name = to_path(path);
  auto map = without_gil([&] {  // opening a file may wait for a disk
    const File file(name);      // closed at the end: an index has more segments than a process may have open files
    auto made = file.map(0);
    if (!made && file.stamp_at_opening().size > 0) throw file_error(ENOMEM, name, 0, file.stamp_at_opening().size);
    return std::make_unique<std::shared_ptr<const FileMap>>(std::move(made));
  });
  if (!*map) return py::array_t<std::uint8_t>(0);
  const std::uint8_t* const data = (*map)->data();
  const auto size = static_cast<py::ssize_t>((*map)->size());
  const py::capsule owner(map.release(), [](void* held) { delete static_cast<std::shared_ptr<const FileMap>*>(held); });
  py::array_t<std::uint8_t> array(size, data, owner);
  array.attr("flags").attr("writeable") = false;  // a write would end the process
  return array;
}

std::unique_ptr<FolderScan> make_scan(const py::object& base, const py::object& ending, const py::object& companion_ending,
                                      std::size_t num_threads) {
  return std::make_unique<FolderScan>(to_path(base), to_path(ending), to_path(companion_ending), num_threads);
}

void enter(FolderScan& scan, const py::object& path) {
  const std::string folder = to_path(path);
  const py::gil_scoped_release release;  // one or two system calls for each file
  scan.enter(folder);
}

py::tuple take_files(FolderScan& scan) {
  const auto files = without_gil([&] { return scan.take_files(); });
  py::list paths(files.size());
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> modification_times;
  std::vector<std::int64_t> changed;
  for (auto* column : {&sizes, &modification_times, &changed}) column->reserve(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    paths[i] = from_path(files[i].path);
    sizes.push_back(files[i].size);
    modification_times.push_back(files[i].modification_time);
    changed.push_back(files[i].changed);
  }
  return py::make_tuple(paths, to_array(std::move(sizes)), to_array(std::move(modification_times)), to_array(std::move(changed)));
}

py::list take_links(FolderScan& scan) {
  py::list links;
  for (const auto& path : scan.take_links()) links.append(from_path(path));
  return links;
}

py::list take_refused(FolderScan& scan) {
  py::list refused;
  for (const auto& [path, error_number] : scan.take_refused()) refused.append(py::make_tuple(from_path(path), error_number));
  return refused;
}

}  // namespace

void register_files(py::module_& module) {
  module.def("stat_and_read_numbers", &stat_and_read, py::arg("paths"), py::arg("ending_size"), py::arg("number_ending"),
             py::arg("floats"), py::arg("num_threads") = 1);
  py::class_<FolderScan>(module, "FolderScan", py::is_final())
      .def(py::init(&make_scan), py::arg("base"), py::arg("ending"), py::arg("companion_ending"), py::arg("num_threads") = 1)
      .def("enter", &enter, py::arg("path"))
      .def("take_files", &take_files)
      .def("take_links", &take_links)
      .def("take_refused", &take_refused);
  module.def("map_file", &map_file, py::arg("path"));
}

}  // namespace modyn::bindings
