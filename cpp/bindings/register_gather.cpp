#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "bindings.hpp"
#include "modyn/csv_fields.hpp"
#include "modyn/gather.hpp"

namespace modyn::bindings {
namespace {

// A column, or one number for all rows.
using ColumnOrNumber = std::variant<Int64Array, std::int64_t>;

// A reference that any thread may drop, with or without the GIL.
std::shared_ptr<const void> keep_alive(const py::object& object) {
  return {new py::object(object), [](const void* held) {
            const py::gil_scoped_acquire acquire;
            delete static_cast<const py::object*>(held);
          }};
}

std::unique_ptr<PathTable> make_table(const py::object& base, bool may_grow, const py::object& unpacked) {
  return std::make_unique<PathTable>(to_path(base), may_grow, to_path(unpacked));
}

using OptionalColumn = std::optional<Int64Array>;

void append_packed(PathTable& table, const Array<std::uint8_t>& text, const Int64Array& ends, const OptionalColumn& sizes,
                   const OptionalColumn& mtimes_ns, const OptionalColumn& tails) {
  check_column(text, "text");
  check_column(ends, "ends");
  PackedPaths paths{text.data(), size_of(text), ends.data(), size_of(ends), keep_alive(py::make_tuple(text, ends, sizes, mtimes_ns, tails))};
  if (sizes.has_value() != mtimes_ns.has_value()) throw InvalidArgument("sizes and mtimes_ns are given both or not at all");
  if (sizes) {
    check_column(*sizes, "sizes", ends.size());
    check_column(*mtimes_ns, "mtimes_ns", ends.size());
    paths.sizes = sizes->data();
    paths.mtimes_ns = mtimes_ns->data();
  }
  if (tails) {
    check_column(*tails, "tails", ends.size());
    paths.tails = tails->data();
  }
  const py::gil_scoped_release release;  // the table's lock may be held by a thread that waits for the GIL
  table.append_packed(std::move(paths));
}

void append(PathTable& table, const py::sequence& path_objects) {
  const auto paths = to_paths(path_objects);
  const py::gil_scoped_release release;
  table.append(paths);
}

void restamp(PathTable& table, const Int64Array& ids, const Int64Array& sizes, const Int64Array& mtimes_ns, const OptionalColumn& tails) {
  check_column(ids, "file_ids");
  check_column(sizes, "sizes", ids.size());
  check_column(mtimes_ns, "mtimes_ns", ids.size());
  FileStamps stamps{ids.data(), sizes.data(), mtimes_ns.data(), size_of(ids), keep_alive(py::make_tuple(ids, sizes, mtimes_ns, tails))};
  if (tails) {
    check_column(*tails, "tails", ids.size());
    stamps.tails = tails->data();
  }
  const py::gil_scoped_release release;
  table.restamp(std::move(stamps));
}

// Looks up a file, without the GIL: a mapped block may have to be read from disk.
IndexedFile file_at(const PathTable& table, py::ssize_t id) {
  if (id < 0) throw py::index_error("file " + std::to_string(id));
  return without_gil([&] { return table.file(static_cast<std::size_t>(id)); });
}

bool may_be(const PathTable& table, py::ssize_t id, std::int64_t size, std::int64_t mtime_ns) {
  return file_at(table, id).may_be({size, mtime_ns});
}

std::optional<std::pair<std::int64_t, std::int64_t>> stamp_at(const PathTable& table, py::ssize_t id) {
  const auto stamp = file_at(table, id).stamp;
  return stamp ? std::optional(std::pair(stamp->size, stamp->mtime_ns)) : std::nullopt;
}

std::int64_t tail_at(const PathTable& table, py::ssize_t id) { return file_at(table, id).tail; }

std::optional<py::str> copy_at(const PathTable& table, py::ssize_t id) {
  const auto file = file_at(table, id);
  return file.copy.empty() ? std::nullopt : std::optional(py::str(from_path(file.copy)));
}

py::str path_at(const PathTable& table, py::ssize_t id) { return from_path(file_at(table, id).path); }

// Gathers the bytes of `count` records and their bounds without the GIL: first fill_bounds(bounds), then fill_data(bounds, data).
template <typename FillBounds, typename FillData>
py::tuple records(py::ssize_t count, const FillBounds& fill_bounds, const FillData& fill_data) {
  auto bounds = filled_array<std::int64_t>(count + 1, fill_bounds);
  const std::int64_t* const ends = bounds.data();
  auto data = filled_array<std::uint8_t>(ends[count], [&](std::uint8_t* into) { fill_data(ends, into); });
  return py::make_tuple(std::move(data), std::move(bounds));
}

class Gatherer {
 public:
  Gatherer(std::size_t max_open_files, std::size_t num_threads, const py::sequence& roots)
      : files_(max_open_files, to_paths(roots)), num_threads_(num_threads) {
    if (num_threads == 0) throw InvalidArgument("num_threads must be at least 1");
  }

  ~Gatherer() { close_files(); }
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  std::size_t num_open_files() const { return files_.size(); }
  std::size_t forget_removed() {
    const py::gil_scoped_release release;  // asks a file system about each file
    return files_.forget_removed();
  }
  void close_files() {
    const py::gil_scoped_release release;  // closes hundreds of files and their maps
    files_.clear();
  }

  py::tuple gather(const PathTable& paths, const Array<std::uint32_t>& file_ids, const Int64Array& offsets, const ColumnOrNumber& lengths) {
    check_column(offsets, "offsets");
    check_column(file_ids, "file_ids", offsets.size());
    GatherRequest request{paths, file_ids.data(), offsets.data(), nullptr, 0, size_of(offsets)};
    if (const auto* column = std::get_if<Int64Array>(&lengths)) {
      check_column(*column, "lengths", offsets.size());
      request.lengths = column->data();
    } else {
      request.fixed_length = std::get<std::int64_t>(lengths);
    }
    const auto fill = [&](const std::int64_t* bounds, std::uint8_t* into) { modyn::gather(request, bounds, into, files_, num_threads_); };
    return records(offsets.size(), [&](std::int64_t* bounds) { gather_bounds(request, bounds); }, fill);
  }

 private:
  FileCache files_;
  std::size_t num_threads_;
};

py::tuple take_rows(const Array<std::uint8_t>& data, const ColumnOrNumber& given, const Int64Array& rows, std::size_t num_threads) {
  check_column(data, "data");
  check_column(rows, "rows");
  TakeRequest request{data.data(), data.size(), nullptr, 0, 0, rows.data(), size_of(rows)};
  if (const auto* bounds = std::get_if<Int64Array>(&given)) {
    check_column(*bounds, "bounds", std::max<py::ssize_t>(bounds->size(), 1));
    request.bounds = bounds->data();
    request.num_records = bounds->size() - 1;
  } else {
    request.fixed_length = std::get<std::int64_t>(given);
    if (request.fixed_length < 1 || data.size() % request.fixed_length != 0) {
      throw InvalidArgument("data of " + std::to_string(data.size()) + " bytes are not rows of " + std::to_string(request.fixed_length) +
                            " bytes");
    }
    request.num_records = data.size() / request.fixed_length;
  }
  const auto fill = [&](const std::int64_t* bounds, std::uint8_t* into) { take(request, bounds, into, num_threads); };
  return records(rows.size(), [&](std::int64_t* bounds) { take_bounds(request, bounds); }, fill);
}

// Returns the first of `rows` with a wrong number of fields, and that number; None if there is none.
std::optional<std::pair<std::int64_t, std::size_t>> reorder_fields(Array<std::uint8_t> data, const Int64Array& bounds, const Int64Array& rows,
                                                                   const Int64Array& order, char separator, const std::optional<char>& quote) {
  check_column(data, "data");
  check_column(bounds, "bounds", std::max<py::ssize_t>(bounds.size(), 1));
  check_column(rows, "rows");
  check_column(order, "order");
  FieldReorderer reorderer({order.data(), order.data() + order.size()}, separator, quote);
  std::uint8_t* const bytes = data.mutable_data();
  return without_gil([&]() -> std::optional<std::pair<std::int64_t, std::size_t>> {
    for (std::size_t i = 0; i < size_of(rows); ++i) {
      const std::int64_t row = rows.data()[i];
      if (row < 0 || row >= bounds.size() - 1) throw InvalidArgument("row " + std::to_string(row) + " does not exist");
      const std::int64_t begin = bounds.data()[row], end = bounds.data()[row + 1];
      if (begin < 0 || end < begin || end > data.size()) throw InvalidArgument("bounds do not lie in data");
      const std::size_t fields = reorderer.reorder(reinterpret_cast<char*>(bytes + begin), static_cast<std::size_t>(end - begin));
      if (fields != size_of(order)) return std::pair(row, fields);
    }
    return std::nullopt;
  });
}

}  // namespace

void register_gather(py::module_& module) {
  py::class_<PathTable>(module, "PathTable", py::is_final())
      .def(py::init(&make_table), py::arg("base"), py::arg("may_grow") = false, py::arg("unpacked") = "")
      .def("append", &append, py::arg("paths"))
      .def("append_packed", &append_packed, py::arg("text"), py::arg("ends"), py::arg("sizes") = py::none(), py::arg("mtimes_ns") = py::none(),
           py::arg("tails") = py::none())
      .def("restamp", &restamp, py::arg("file_ids"), py::arg("sizes"), py::arg("mtimes_ns"), py::arg("tails") = py::none())
      .def("stamp", &stamp_at, py::arg("file_id"))
      .def("copy", &copy_at, py::arg("file_id"))
      .def("tail", &tail_at, py::arg("file_id"))
      .def("may_be", &may_be, py::arg("file_id"), py::arg("size"), py::arg("mtime_ns"))
      .def("__len__", &PathTable::size)
      .def("__getitem__", &path_at, py::arg("file_id"));
  py::class_<Gatherer>(module, "Gatherer", py::is_final())
      .def(py::init<std::size_t, std::size_t, const py::sequence&>(), py::arg("max_open_files") = 256, py::arg("num_threads") = 1,
           py::arg("roots") = py::tuple())
      .def("gather", &Gatherer::gather, py::arg("paths"), py::arg("file_ids"), py::arg("offsets"), py::arg("lengths"))
      .def_property_readonly("num_open_files", &Gatherer::num_open_files)
      .def("forget_removed", &Gatherer::forget_removed)
      .def("close_files", &Gatherer::close_files);
  module.def("reorder_fields", &reorder_fields, py::arg("data").noconvert(), py::arg("bounds"), py::arg("rows"), py::arg("order"),
             py::arg("separator"), py::arg("quote") = py::none());
  module.def("take", &take_rows, py::arg("data"), py::arg("bounds"), py::arg("rows"), py::arg("num_threads") = 1);
}

}  // namespace modyn::bindings
