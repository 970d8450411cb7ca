#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "bindings.hpp"
#include "modyn/gather.hpp"

namespace modyn::bindings {
namespace {

void check_column(const py::array& column, const char* name, py::ssize_t count) {
  if (column.ndim() != 1 || column.size() != count) {
    throw InvalidArgument(std::string(name) + " must be an array of shape (" + std::to_string(count) + ",)");
  }
}

// Either a column or one number for all rows.
struct ColumnOrNumber {
  explicit ColumnOrNumber(const py::object& object) {
    if (py::isinstance<py::array>(object)) {
      column = object.cast<Int64Array>();
    } else {
      number = object.cast<std::int64_t>();
    }
  }
  const std::int64_t* data() const { return column ? column->data() : nullptr; }

  std::optional<Int64Array> column;
  std::int64_t number = 0;
};

// A reference that any thread may drop, with or without the GIL.
std::shared_ptr<const void> keep_alive(const py::object& object) {
  return {new py::object(object), [](const void* held) {
            const py::gil_scoped_acquire acquire;
            delete static_cast<const py::object*>(held);
          }};
}

std::unique_ptr<PathTable> make_table(const py::object& base, bool may_grow) { return std::make_unique<PathTable>(to_path(base), may_grow); }

using Stamps = std::optional<Int64Array>;

// Whether there are stamps.
bool check_stamps(const Stamps& sizes, const Stamps& mtimes_ns, py::ssize_t count) {
  if (sizes.has_value() != mtimes_ns.has_value()) throw InvalidArgument("sizes and mtimes_ns are given both or not at all");
  if (sizes) check_column(*sizes, "sizes", count);
  if (mtimes_ns) check_column(*mtimes_ns, "mtimes_ns", count);
  return sizes.has_value();
}

void append_packed(PathTable& table, const Array<std::uint8_t>& text, const Int64Array& ends, const Stamps& sizes,
                   const Stamps& mtimes_ns) {
  check_column(text, "text", text.size());
  check_column(ends, "ends", ends.size());
  const bool stamped = check_stamps(sizes, mtimes_ns, ends.size());
  const std::int64_t* const sizes_data = stamped ? sizes->data() : nullptr;
  const std::int64_t* const mtimes_data = stamped ? mtimes_ns->data() : nullptr;
  const std::uint8_t* text_data = text.data();
  const std::int64_t* ends_data = ends.data();
  const auto text_size = static_cast<std::size_t>(text.size());
  const auto count = static_cast<std::size_t>(ends.size());
  auto owner = keep_alive(py::make_tuple(text, ends, sizes, mtimes_ns));
  const py::gil_scoped_release release;  // the table's lock may be held by a thread that waits for the GIL
  table.append_packed(text_data, text_size, ends_data, count, std::move(owner), sizes_data, mtimes_data);
}

void append(PathTable& table, const py::sequence& path_objects, const Stamps& sizes, const Stamps& mtimes_ns) {
  const auto paths = to_paths(path_objects);
  std::vector<FileStamp> stamps;
  if (check_stamps(sizes, mtimes_ns, static_cast<py::ssize_t>(paths.size()))) {
    for (py::ssize_t i = 0; i < sizes->size(); ++i) stamps.push_back({sizes->data()[i], mtimes_ns->data()[i]});
  }
  const py::gil_scoped_release release;
  table.append(paths, std::move(stamps));
}

void restamp(PathTable& table, const Int64Array& ids, const Int64Array& sizes, const Int64Array& mtimes_ns) {
  check_column(ids, "file_ids", ids.size());
  check_stamps(sizes, mtimes_ns, ids.size());
  const std::int64_t* const ids_data = ids.data();
  const std::int64_t* const sizes_data = sizes.data();
  const std::int64_t* const mtimes_data = mtimes_ns.data();
  const auto count = static_cast<std::size_t>(ids.size());
  auto owner = keep_alive(py::make_tuple(ids, sizes, mtimes_ns));
  const py::gil_scoped_release release;
  table.restamp(ids_data, sizes_data, mtimes_data, count, std::move(owner));
}

std::size_t checked(py::ssize_t id) {
  if (id < 0) throw py::index_error("file " + std::to_string(id));
  return static_cast<std::size_t>(id);
}

bool may_be(const PathTable& table, py::ssize_t id, std::int64_t size, std::int64_t mtime_ns) {
  const std::size_t number = checked(id);
  const py::gil_scoped_release release;
  return table.file(number).may_be({size, mtime_ns});
}

std::optional<std::pair<std::int64_t, std::int64_t>> stamp_at(const PathTable& table, py::ssize_t id) {
  const std::size_t number = checked(id);
  const py::gil_scoped_release release;
  const auto stamp = table.file(number).stamp;
  if (!stamp) return std::nullopt;
  return std::pair{stamp->size, stamp->mtime_ns};
}

py::str path_at(const PathTable& table, py::ssize_t id) {
  const std::size_t number = checked(id);
  return from_path(without_gil([&] { return table.path(number); }));  // a mapped block may have to come from a disk
}

class Gatherer {
 public:
  Gatherer(std::size_t max_open_files, std::size_t num_threads) : files_(max_open_files), num_threads_(num_threads) {
    if (num_threads == 0) throw InvalidArgument("num_threads must be at least 1");
  }

  py::tuple gather(const py::object& paths, const Array<std::uint32_t>& file_ids, const Int64Array& offsets,
                   const py::object& lengths) {
    if (py::isinstance<PathTable>(paths)) return gather_from(paths.cast<const PathTable&>(), file_ids, offsets, lengths);
    PathTable table{std::string()};
    table.append(to_paths(paths.cast<py::sequence>()));
    return gather_from(table, file_ids, offsets, lengths);
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

 private:
  py::tuple gather_from(const PathTable& paths, const Array<std::uint32_t>& file_ids, const Int64Array& offsets,
                        const py::object& lengths_object) {
    const py::ssize_t count = offsets.size();
    check_column(offsets, "offsets", count);
    check_column(file_ids, "file_ids", count);
    const ColumnOrNumber lengths(lengths_object);
    if (lengths.column) check_column(*lengths.column, "lengths", count);
    const GatherRequest request{paths,          file_ids.data(), offsets.data(), lengths.data(),
                                lengths.number, static_cast<std::size_t>(count)};
    auto bounds = filled_array<std::int64_t>(count + 1, [&](std::int64_t* into) { gather_bounds(request, into); });
    const std::int64_t* const bounds_data = bounds.data();
    auto data = filled_array<std::uint8_t>(bounds_data[count],
                                           [&](std::uint8_t* into) { modyn::gather(request, bounds_data, into, files_, num_threads_); });
    return py::make_tuple(std::move(data), std::move(bounds));
  }

  FileCache files_;
  std::size_t num_threads_;
};

py::tuple take_rows(const Array<std::uint8_t>& data, const py::object& bounds_object, const Int64Array& rows,
                    std::size_t num_threads) {
  check_column(data, "data", data.size());
  check_column(rows, "rows", rows.size());
  const ColumnOrNumber given(bounds_object);
  if (given.column) {
    check_column(*given.column, "bounds", std::max<py::ssize_t>(given.column->size(), 1));
  } else if (given.number < 1 || data.size() % given.number != 0) {
    throw InvalidArgument("data of " + std::to_string(data.size()) + " bytes are not rows of " + std::to_string(given.number) + " bytes");
  }
  const py::ssize_t num_records = given.column ? given.column->size() - 1 : data.size() / given.number;
  const TakeRequest request{data.data(), data.size(), given.data(), given.number, num_records, rows.data(),
                            static_cast<std::size_t>(rows.size())};
  auto bounds = filled_array<std::int64_t>(rows.size() + 1, [&](std::int64_t* into) { take_bounds(request, into); });
  const std::int64_t* const bounds_data = bounds.data();
  auto taken =
      filled_array<std::uint8_t>(bounds_data[rows.size()], [&](std::uint8_t* into) { take(request, bounds_data, into, num_threads); });
  return py::make_tuple(std::move(taken), std::move(bounds));
}

}  // namespace

void register_gather(py::module_& module) {
  py::class_<PathTable>(module, "PathTable", py::is_final())
      .def(py::init(&make_table), py::arg("base"), py::arg("may_grow") = false)
      .def("append", &append, py::arg("paths"), py::arg("sizes") = py::none(), py::arg("mtimes_ns") = py::none())
      .def("append_packed", &append_packed, py::arg("text"), py::arg("ends"), py::arg("sizes") = py::none(), py::arg("mtimes_ns") = py::none())
      .def("restamp", &restamp, py::arg("file_ids"), py::arg("sizes"), py::arg("mtimes_ns"))
      .def("stamp", &stamp_at, py::arg("file_id"))
      .def("may_be", &may_be, py::arg("file_id"), py::arg("size"), py::arg("mtime_ns"))
      .def("__len__", &PathTable::size)
      .def("__getitem__", &path_at, py::arg("file_id"));
  py::class_<Gatherer>(module, "Gatherer", py::is_final())
      .def(py::init<std::size_t, std::size_t>(), py::arg("max_open_files") = 256, py::arg("num_threads") = 1)
      .def("gather", &Gatherer::gather, py::arg("paths"), py::arg("file_ids"), py::arg("offsets"), py::arg("lengths"))
      .def_property_readonly("num_open_files", &Gatherer::num_open_files)
      .def("forget_removed", &Gatherer::forget_removed)
      .def("close_files", &Gatherer::close_files);
  module.def("take", &take_rows, py::arg("data"), py::arg("bounds"), py::arg("rows"), py::arg("num_threads") = 1);
}

}  // namespace modyn::bindings
