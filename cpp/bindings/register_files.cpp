#include <cerrno>
#include <memory>

#include "bindings.hpp"
#include "modyn/csv.hpp"
#include "modyn/file.hpp"
#include "modyn/scan.hpp"
#include "modyn/unpacked.hpp"

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
    const File file(name);      // closed afterwards: an index may have more segments than the limit of open files
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

void append_files(KnownFiles& known, const py::sequence& path_objects, const Int64Array& sizes, const Int64Array& mtimes_ns,
                  const py::sequence& altered, const Int64Array& tails) {
  const auto paths = to_paths(path_objects);
  check_column(sizes, "sizes", static_cast<py::ssize_t>(paths.size()));
  check_column(mtimes_ns, "mtimes_ns", static_cast<py::ssize_t>(paths.size()));
  check_column(tails, "tails", static_cast<py::ssize_t>(paths.size()));
  std::vector<bool> flags;
  for (const auto& flag : altered) flags.push_back(flag.cast<bool>());
  if (flags.size() != paths.size()) throw InvalidArgument("altered must have an entry for each path");
  const py::gil_scoped_release release;
  for (std::size_t i = 0; i < paths.size(); ++i) known.append(paths[i], sizes.data()[i], mtimes_ns.data()[i], flags[i], tails.data()[i]);
}

py::array_t<std::int64_t> find_files(const KnownFiles& known, const py::sequence& path_objects) {
  const auto paths = to_paths(path_objects);
  return filled_array<std::int64_t>(static_cast<std::int64_t>(paths.size()), [&](std::int64_t* ids) {
    for (std::size_t i = 0; i < paths.size(); ++i) ids[i] = known.find(paths[i]);
  });
}

py::tuple stamps_of(const KnownFiles& known, const Int64Array& ids) {
  check_column(ids, "ids");
  const std::size_t count = size_of(ids);
  for (std::size_t i = 0; i < count; ++i) {
    if (static_cast<std::uint64_t>(ids.data()[i]) >= known.size()) throw py::index_error("there is no file " + std::to_string(ids.data()[i]));
  }
  std::vector<std::int64_t> sizes(count), mtimes_ns(count), tails(count);
  without_gil([&] {
    for (std::size_t i = 0; i < count; ++i) {
      sizes[i] = known.bytes(static_cast<std::size_t>(ids.data()[i]));
      mtimes_ns[i] = known.mtime_ns(static_cast<std::size_t>(ids.data()[i]));
      tails[i] = known.tail(static_cast<std::size_t>(ids.data()[i]));
    }
  });
  return py::make_tuple(to_array(std::move(sizes)), to_array(std::move(mtimes_ns)), to_array(std::move(tails)));
}

py::tuple packed_paths(const KnownFiles& known, std::size_t first) {
  std::vector<std::uint8_t> text;
  std::vector<std::int64_t> ends;
  without_gil([&] {
    for (std::size_t id = first; id < known.size(); ++id) {
      const auto path = known.path(id);
      text.insert(text.end(), path.begin(), path.end());
      ends.push_back(static_cast<std::int64_t>(text.size()));
    }
  });
  return py::make_tuple(to_array(std::move(text)), to_array(std::move(ends)));
}

py::str path_of(const KnownFiles& known, std::size_t id) {
  if (id >= known.size()) throw py::index_error("there is no file " + std::to_string(id));
  return from_path(std::string(known.path(id)));
}

py::object take_changes(FolderWatch& watch) {
  const auto changes = without_gil([&] { return watch.take(); });
  if (!changes) return py::none();
  py::list paths;
  for (const auto& path : *changes) paths.append(from_path(path));
  return paths;
}

std::unique_ptr<FolderScan> make_scan(const py::object& base, const py::object& ending, const py::object& companion_ending,
                                      std::size_t num_threads, const KnownFiles& known, FolderWatch* watch, bool packed) {
  return std::make_unique<FolderScan>(to_path(base), to_path(ending), to_path(companion_ending), num_threads, known, watch, packed);
}

void look_at(FolderScan& scan, const py::sequence& path_objects) {
  const auto paths = to_paths(path_objects);
  without_gil([&] { scan.look_at(paths); });
}

py::array_t<std::int64_t> absent_files(const FolderScan& scan, bool of_all) {
  return to_array(without_gil([&] { return scan.absent(of_all); }));
}

void enter(FolderScan& scan, const py::object& path) {
  const std::string folder = to_path(path);
  const py::gil_scoped_release release;  // one or two system calls for each file
  scan.enter(folder);
}

py::tuple take_files(FolderScan& scan, std::size_t max_files) {
  const auto files = without_gil([&] { return scan.take_files(max_files); });
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
                                         bool skip_first_line, bool utf8, std::size_t max_field_lines, const TimeFormat& times, bool class_labels) {
  CsvOptions options{one_byte(separator, "separator"), std::nullopt, label_column, float_labels, class_labels, std::nullopt, skip_first_line, utf8, max_field_lines, times};
  if (!quote.empty()) options.quote = one_byte(quote, "quote");
  if (timestamp_column >= 0) options.timestamp_column = static_cast<std::size_t>(timestamp_column);
  std::string file = to_path(path);
  const Roots folders = to_paths(roots);
  const py::gil_scoped_release release;  // opens and reads a file
  return std::make_unique<CsvIndexer>(std::move(file), folders, start, first_row, options);
}

py::object next_rows(CsvIndexer& indexer, std::size_t max_rows) {
  CsvRows rows = without_gil([&] { return indexer.next(max_rows); });
  if (rows.offsets.empty() && rows.bad.empty()) return py::none();
  py::list bad;
  for (const auto& row : rows.bad) bad.append(py::make_tuple(row.offset, from_text(row.reason)));
  py::object timestamps = py::none();
  if (indexer.options().timestamp_column) timestamps = to_array(std::move(rows.timestamps));
  py::list classes;
  for (const auto& text : rows.classes) classes.append(py::bytes(text));
  return py::make_tuple(to_array(std::move(rows.offsets)), to_array(std::move(rows.lengths)),
                        to_labels(std::move(rows.labels), indexer.options().float_labels), timestamps, bad, rows.unended, classes);
}

}  // namespace

void register_files(py::module_& module) {
  module.def("stat_and_read_numbers", &stat_and_read, py::arg("paths"), py::arg("ending_size"), py::arg("number_ending"),
             py::arg("floats"), py::arg("roots") = py::tuple(), py::arg("num_threads") = 1);
  py::class_<KnownFiles>(module, "KnownFiles", py::is_final())
      .def(py::init<>())
      .def("append", &append_files, py::arg("paths"), py::arg("sizes"), py::arg("mtimes_ns"), py::arg("altered"),
           py::arg("tails"))
      .def("change", &KnownFiles::change, py::arg("file_id"), py::arg("size"), py::arg("mtime_ns"), py::arg("altered"), py::arg("tail"))
      .def("find", &find_files, py::arg("paths"))
      .def("path", &path_of, py::arg("file_id"))
      .def("stamps", &stamps_of, py::arg("file_ids"))
      .def("packed_paths", &packed_paths, py::arg("first"))
      .def(
          "any_below",
          [](const KnownFiles& known, const py::object& folder) {
            const std::string path = to_path(folder);
            return without_gil([&] { return known.any_below(path); });
          },
          py::arg("folder"))
      .def("__len__", &KnownFiles::size);
  py::class_<FolderWatch>(module, "FolderWatch", py::is_final())
      .def(py::init<>())
      .def_property_readonly("holds", &FolderWatch::holds)
      .def("end", &FolderWatch::end)
      .def("take", &take_changes);
  py::class_<FolderScan>(module, "FolderScan", py::is_final())
      .def(py::init(&make_scan), py::arg("base"), py::arg("ending"), py::arg("companion_ending"), py::arg("num_threads"), py::arg("known"),
           py::arg("watch") = py::none(), py::arg("packed") = false, py::keep_alive<1, 6>(), py::keep_alive<1, 7>())
      .def("enter", &enter, py::arg("path"))
      .def("look_at", &look_at, py::arg("paths"))
      .def("absent", &absent_files, py::kw_only(), py::arg("of_all"))
      .def("take_files", &take_files, py::arg("max_files"))
      .def("take_links", &take_links)
      .def("take_refused", &take_refused);
  py::class_<CsvIndexer>(module, "CsvIndexer", py::is_final())
      .def(py::init(&make_indexer), py::arg("path"), py::kw_only(), py::arg("roots") = py::tuple(), py::arg("start") = 0, py::arg("first_row") = 0,
           py::arg("separator") = ",", py::arg("quote") = "\"", py::arg("label_column") = 0, py::arg("float_labels") = false,
           py::arg("timestamp_column") = -1, py::arg("skip_first_line") = false, py::arg("utf8") = true, py::arg("max_field_lines") = 1000,
           py::arg("times") = TimeFormat(), py::arg("class_labels") = false)
      .def("next", &next_rows, py::arg("max_rows"))
      .def_property_readonly("position", &CsvIndexer::position)
      .def_property_readonly("num_columns", &CsvIndexer::num_columns);
  module.def(
      "unpacked_copy",
      [](const py::object& folder, const py::object& path, std::int64_t size, std::int64_t tail) {
        return from_path(unpacked_copy(to_path(folder), to_path(path), size, tail));
      },
      py::arg("folder"), py::arg("path"), py::arg("size"), py::arg("tail"));
  module.def("open_file", &open_file, py::arg("path"), py::arg("roots"));
  module.def("map_file", &map_file, py::arg("path"));
}

}  // namespace modyn::bindings
