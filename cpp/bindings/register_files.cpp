#include <cerrno>
#include <memory>

#include "bindings.hpp"
#include "modyn/csv.hpp"
#include "modyn/file.hpp"
#include "modyn/scan.hpp"

namespace modyn::bindings {
namespace {

py::tuple stat_and_read(const py::sequence& path_objects, std::size_t ending_size, const py::object& number_ending, bool floats,
                        const py::sequence& roots, std::size_t num_threads) {
  const auto paths = to_paths(path_objects), folders = to_paths(roots);
  const std::string ending = to_path(number_ending);
  SmallFiles found = without_gil([&] { return stat_and_read_numbers(paths, ending_size, ending, floats, folders, num_threads); });
  py::dict problems;
  for (const auto& problem : found.problems) {
    problems[py::int_(problem.position)] = py::make_tuple(from_path(problem.path), from_text(problem.reason));
  }
  return py::make_tuple(to_array(std::move(found.sizes)), to_array(std::move(found.modification_times)),
                        to_labels(std::move(found.numbers), floats), problems);
}

int open_file(const py::object& path, const py::sequence& roots) {
  const std::string name = to_path(path);
  const Roots folders = to_paths(roots);
  const int descriptor = without_gil([&] { return open_to_read(name, folders); });
  if (descriptor < 0) throw file_error(errno, name, 0, 0);
  return descriptor;
}

py::array_t<std::uint8_t> map_file(const py::object& path) {
  const std::string name = to_path(path);
  std::int64_t size = 0;
  auto map = without_gil([&] {  // opening a file may wait for a disk
    const File file(name);      // closed at the end: an index has more segments than a process may have open files
    size = file.stamp_at_opening().size;
    auto made = file.map(0);
    if (!made && size > 0) throw file_error(ENOMEM, name, 0, size);
    return made;
  });
  const std::uint8_t* const data = map.get();
  auto array = array_over(data, static_cast<std::size_t>(size), std::move(map));
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
  py::list paths;
  std::vector<std::int64_t> sizes, modification_times, changed;
  for (const FoundFile& file : files) {
    paths.append(from_path(file.path));
    sizes.push_back(file.size);
    modification_times.push_back(file.modification_time);
    changed.push_back(file.changed);
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

char one_byte(const std::string& text, const char* name) {
  if (text.size() != 1) throw InvalidArgument(std::string(name) + " must be one byte long, not '" + text + "'");
  return text[0];
}

std::unique_ptr<CsvIndexer> make_indexer(const py::object& path, const py::sequence& roots, std::int64_t start, std::int64_t first_row, const std::string& separator,
                                         const std::string& quote, std::size_t label_column, bool float_labels, std::int64_t timestamp_column,
                                         bool skip_first_line) {
  CsvOptions options{one_byte(separator, "separator"), std::nullopt, label_column, float_labels, std::nullopt, skip_first_line};
  if (!quote.empty()) options.quote = one_byte(quote, "quote");
  if (timestamp_column >= 0) options.timestamp_column = static_cast<std::size_t>(timestamp_column);
  std::string file = to_path(path);
  const Roots folders = to_paths(roots);
  const py::gil_scoped_release release;  // opens and reads a file
  return std::make_unique<CsvIndexer>(std::move(file), folders, start, first_row, options);
}

py::object next_rows(CsvIndexer& indexer, std::size_t max_rows) {
  CsvRows rows = without_gil([&] { return indexer.next(max_rows); });
  if (rows.offsets.empty()) return py::none();
  py::object timestamps = py::none();
  if (indexer.options().timestamp_column) timestamps = to_array(std::move(rows.timestamps));
  return py::make_tuple(to_array(std::move(rows.offsets)), to_array(std::move(rows.lengths)),
                        to_labels(std::move(rows.labels), indexer.options().float_labels), timestamps);
}

}  // namespace

void register_files(py::module_& module) {
  module.def("stat_and_read_numbers", &stat_and_read, py::arg("paths"), py::arg("ending_size"), py::arg("number_ending"),
             py::arg("floats"), py::arg("roots") = py::tuple(), py::arg("num_threads") = 1);
  py::class_<FolderScan>(module, "FolderScan", py::is_final())
      .def(py::init(&make_scan), py::arg("base"), py::arg("ending"), py::arg("companion_ending"), py::arg("num_threads") = 1)
      .def("enter", &enter, py::arg("path"))
      .def("take_files", &take_files)
      .def("take_links", &take_links)
      .def("take_refused", &take_refused);
  py::class_<CsvIndexer>(module, "CsvIndexer", py::is_final())
      .def(py::init(&make_indexer), py::arg("path"), py::kw_only(), py::arg("roots") = py::tuple(), py::arg("start") = 0, py::arg("first_row") = 0,
           py::arg("separator") = ",", py::arg("quote") = "\"", py::arg("label_column") = 0, py::arg("float_labels") = false,
           py::arg("timestamp_column") = -1, py::arg("skip_first_line") = false)
      .def("next", &next_rows, py::arg("max_rows"))
      .def_property_readonly("position", &CsvIndexer::position);
  module.def("open_file", &open_file, py::arg("path"), py::arg("roots"));
  module.def("map_file", &map_file, py::arg("path"));
}

}  // namespace modyn::bindings
