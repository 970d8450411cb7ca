#include <memory>

#include "bindings.hpp"
#include "modyn/csv.hpp"

namespace modyn::bindings {
namespace {

char one_byte(const std::string& text, const char* name) {
  if (text.size() != 1) throw InvalidArgument(std::string(name) + " must be one byte long, not '" + text + "'");
  return text[0];
}

std::unique_ptr<CsvIndexer> make_indexer(const py::object& path, std::int64_t start, std::int64_t first_row, const std::string& separator,
                                         const std::string& quote, std::size_t label_column, bool float_labels, std::int64_t timestamp_column,
                                         bool skip_first_line) {
  CsvOptions options;
  options.separator = one_byte(separator, "separator");
  options.quoting = !quote.empty();
  if (options.quoting) options.quote = one_byte(quote, "quote");
  options.label_column = label_column;
  options.float_labels = float_labels;
  options.timestamps = timestamp_column >= 0;
  if (options.timestamps) options.timestamp_column = static_cast<std::size_t>(timestamp_column);
  options.skip_first_line = skip_first_line;
  std::string file = to_path(path);
  const py::gil_scoped_release release;  // opens and reads a file
  return std::make_unique<CsvIndexer>(std::move(file), start, first_row, options);
}

py::object next_rows(CsvIndexer& indexer, std::size_t max_rows) {
  CsvRows rows = without_gil([&] { return indexer.next(max_rows); });
  if (rows.offsets.empty()) return py::none();
  const bool floats = !rows.float_labels.empty();
  const bool timed = !rows.timestamps.empty();
  py::object labels = floats ? py::object(to_array(std::move(rows.float_labels))) : py::object(to_array(std::move(rows.int_labels)));
  py::object timestamps = timed ? py::object(to_array(std::move(rows.timestamps))) : py::object(py::none());
  return py::make_tuple(to_array(std::move(rows.offsets)), to_array(std::move(rows.lengths)), labels, timestamps);
}

}  // namespace

void register_csv(py::module_& module) {
  py::class_<CsvIndexer>(module, "CsvIndexer", py::is_final())
      .def(py::init(&make_indexer), py::arg("path"), py::kw_only(), py::arg("start") = 0, py::arg("first_row") = 0,
           py::arg("separator") = ",", py::arg("quote") = "\"", py::arg("label_column") = 0, py::arg("float_labels") = false,
           py::arg("timestamp_column") = -1, py::arg("skip_first_line") = false)
      .def("next", &next_rows, py::arg("max_rows"))
      .def_property_readonly("position", &CsvIndexer::position);
}

}  // namespace modyn::bindings
