#include <pybind11/stl.h>

#include <algorithm>

#include "bindings.hpp"
#include "modyn/column.hpp"
#include "modyn/copy.hpp"
#include "modyn/errors.hpp"
#include "modyn/guard.hpp"
#include "modyn/key_set.hpp"
#include "modyn/permutation.hpp"
#include "modyn/sample_index.hpp"

namespace modyn::bindings {
namespace {

// Calls use(), which reads maps of index files. If a file was truncated meanwhile, this throws an error instead of ending the process. Functions
// that `use` calls must own nothing, see guard.hpp.
template <typename Use>
void touching_maps(Use use) {
  if (!survives_bus_error(use)) throw MapCut();
}

// A column with its memory: `content` holds the column and the map that contains it.
class StoredColumn {
 public:
  StoredColumn(Array<std::uint8_t> content, const std::string& encoding, std::size_t width, std::int64_t num_rows)
      : column(Column::constant(0)), num_rows_(num_rows), content_(std::move(content)) {
    check_column(content_, "content");
    const std::uint8_t* data = content_.data();
    const auto size = static_cast<std::uint64_t>(content_.size());
    if (num_rows < 1) throw InvalidArgument("a column has at least one row");
    const Column stored = Column::plain(data, width);
    if (reinterpret_cast<std::uintptr_t>(data) % width != 0) throw InvalidArgument("a column is aligned to the width of its values");
    if (encoding == "plain" && size % width == 0 && size / width == static_cast<std::uint64_t>(num_rows)) {
      column = stored;
    } else if (encoding == "constant" && size == width) {
      column = Column::constant(stored.at(0));
    } else if (encoding == "runs" && width == 8 && size > 0 && size % 24 == 0) {
      column = Column::runs(reinterpret_cast<const std::int64_t*>(data), size / 24);
    } else {
      throw InvalidArgument(std::to_string(size) + " bytes are not a column of " + std::to_string(num_rows) + " rows, stored as " + encoding +
                            " in values of " + std::to_string(width) + " bytes");
    }
  }

  std::int64_t num_rows() const { return num_rows_; }

  std::int64_t at(std::int64_t row) const {
    if (row < 0 || row >= num_rows_) throw py::index_error(outside(row));
    std::int64_t value = 0;
    touching_maps([&] { value = column.at(row); });
    return value;
  }

  Int64Array take(const Int64Array& rows) const {
    check_column(rows, "rows");
    const auto count = size_of(rows);
    const std::int64_t* const wanted = rows.data();
    const std::int64_t* wrong = wanted + count;
    auto values = filled_array<std::int64_t>(rows.size(), [&](std::int64_t* into) {  // may wait for the disk
      wrong = std::find_if(wanted, wanted + count, [this](std::int64_t row) { return row < 0 || row >= num_rows_; });
      if (wrong == wanted + count) touching_maps([&] { column.read(wanted, count, into); });
    });
    if (wrong != wanted + count) throw py::index_error(outside(*wrong));
    return values;
  }

  Int64Array slice(std::int64_t start, std::int64_t stop) const {
    if (start < 0 || start > stop || stop > num_rows_) {
      throw py::index_error("rows " + std::to_string(start) + " to " + std::to_string(stop) + " of " + std::to_string(num_rows_));
    }
    return filled_array<std::int64_t>(stop - start, [&](std::int64_t* into) {  // may wait for the disk
      touching_maps([&] {
        for (std::int64_t row = start; row < stop; ++row) into[row - start] = column.at(row);
      });
    });
  }

  Column column;

 private:
  std::string outside(std::int64_t row) const { return "row " + std::to_string(row) + " of " + std::to_string(num_rows_); }

  std::int64_t num_rows_;
  Array<std::uint8_t> content_;
};

// Returns for each of `keys` whether an index or a set contains it.
template <typename Set>
py::array_t<bool> contains(const Set& set, const Int64Array& keys) {
  check_column(keys, "keys");
  return filled_array<bool>(keys.size(), [&](bool* found) { set.contains(keys.data(), size_of(keys), found); });
}

// The index with the columns that it reads.
class StoredIndex {
 public:
  StoredIndex(const Int64Array& first_keys, py::tuple columns) : columns_(std::move(columns)), index_(views(first_keys)) {}

  py::object entries(const Int64Array& keys) const { return look_up(keys, true); }
  py::object labels_and_timestamps(const Int64Array& keys) const { return look_up(keys, false); }

  py::array_t<bool> contains(const Int64Array& keys) const { return bindings::contains(index_, keys); }

 private:
  std::vector<SegmentView> views(const Int64Array& first_keys) const {
    check_column(first_keys, "first_keys", static_cast<py::ssize_t>(columns_.size()));
    std::vector<SegmentView> segments;
    segments.reserve(columns_.size());
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const auto five = columns_[i].cast<py::tuple>();
      if (five.size() != 5) throw InvalidArgument("a segment has five columns");
      const auto column = [&](std::size_t number) -> const StoredColumn& { return five[number].cast<const StoredColumn&>(); };
      const std::int64_t first_key = first_keys.data()[i], rows = column(0).num_rows();
      for (std::size_t number = 1; number < 5; ++number) {
        if (column(number).num_rows() != rows) throw InvalidArgument("columns of a segment differ in length");
      }
      segments.push_back({first_key, first_key + rows, column(0).column, column(1).column, column(2).column, column(3).column, column(4).column});
    }
    return segments;
  }

  // With `locations`: file ids, offsets, lengths, labels. Otherwise: labels, timestamps.
  py::object look_up(const Int64Array& keys, bool locations) const {
    check_column(keys, "keys");
    const py::ssize_t count = keys.size();
    const auto common_length = index_.common_length();
    Answers answers;
    py::list columns;
    const auto add = [&](auto*& into) {
      auto column = new_array<std::remove_reference_t<decltype(*into)>>(count);
      into = column.mutable_data();
      columns.append(column);
    };
    if (locations) {
      add(answers.file_ids);
      add(answers.offsets);
      if (common_length) columns.append(*common_length);
      else add(answers.lengths);
    }
    add(answers.labels);
    if (!locations) add(answers.timestamps);
    // Pages of the map may have to be read. This object keeps the map alive.
    bool known = false;
    without_gil([&] { touching_maps([&] { known = index_.look_up(keys.data(), size_of(keys), answers); }); });
    if (!known) return py::none();
    return py::tuple(columns);
  }

  py::tuple columns_;
  SampleIndex index_;
};

py::object runs_of(const Int64Array& values, std::size_t max_runs) {
  check_column(values, "values");
  Runs runs = without_gil([&] { return find_runs(values.data(), size_of(values), max_runs); });
  if (runs.starts.empty() && values.size() > 0) return py::none();
  return py::make_tuple(to_array(std::move(runs.starts)), to_array(std::move(runs.values)), to_array(std::move(runs.strides)));
}

KeySet key_set_of(const Int64Array& keys) {
  check_column(keys, "keys");
  return without_gil([&] { return KeySet(keys.data(), size_of(keys)); });
}

KeySet parsed(const py::bytes& content) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(content.ptr(), &data, &size) != 0) throw py::error_already_set();
  return without_gil([&] { return KeySet::parsed(reinterpret_cast<const std::uint8_t*>(data), static_cast<std::size_t>(size)); });
}

py::bytes serialized(const KeySet& set) {
  const auto bytes = without_gil([&] { return set.serialized(); });
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Int64Array between(const KeySet& set, std::int64_t first, std::int64_t end) {
  return to_array(without_gil([&] { return set.between(first, end); }));
}

template <typename T>
py::array_t<T> picked(const Array<T>& values, const Int64Array& rows) {
  check_column(values, "values");
  check_column(rows, "rows");
  return filled_array<T>(rows.size(), [&](T* into) { pick(values.data(), size_of(values), rows.data(), size_of(rows), into); });
}

py::array_t<std::int64_t> permuted(const std::array<std::uint64_t, 4>& seed, std::int64_t count, std::size_t threads) {
  if (count < 0) throw InvalidArgument("there are no permutations of " + std::to_string(count) + " numbers");
  return filled_array<std::int64_t>(count, [&](std::int64_t* into) { permutation(seed, static_cast<std::size_t>(count), into, threads); });
}

// Keeps the GIL: a batch is read in microseconds, and reacquiring the GIL takes much longer.
bool holds(const Int64Array& values, std::int64_t value) {
  const std::int64_t* const end = values.data() + values.size();
  return std::find(values.data(), end, value) != end;
}

}  // namespace

void register_index(py::module_& module) {
  py::class_<StoredColumn>(module, "Column", py::is_final())
      .def(py::init<Array<std::uint8_t>, const std::string&, std::size_t, std::int64_t>(), py::arg("content"), py::arg("encoding"),
           py::arg("width"), py::arg("num_rows"))
      .def("at", &StoredColumn::at, py::arg("row"))
      .def("take", &StoredColumn::take, py::arg("rows"))
      .def("slice", &StoredColumn::slice, py::arg("start"), py::arg("stop"));
  py::class_<StoredIndex>(module, "SampleIndex", py::is_final())
      .def(py::init<const Int64Array&, py::tuple>(), py::arg("first_keys"), py::arg("columns"))
      .def("entries", &StoredIndex::entries, py::arg("keys"))
      .def("labels_and_timestamps", &StoredIndex::labels_and_timestamps, py::arg("keys"))
      .def("contains", &StoredIndex::contains, py::arg("keys"));
  py::class_<KeySet>(module, "KeySet", py::is_final())
      .def(py::init(&key_set_of), py::arg("keys"))
      .def_static("parsed", &parsed, py::arg("content"))
      .def("serialized", &serialized)
      .def("__len__", &KeySet::size)
      .def("united", &KeySet::united, py::arg("other"), py::call_guard<py::gil_scoped_release>())
      .def("contains", &contains<KeySet>, py::arg("keys"))
      .def("between", &between, py::arg("first"), py::arg("end"));
  module.def("find_runs", &runs_of, py::arg("values"), py::arg("max_runs"));
  module.def("holds", &holds, py::arg("values"), py::arg("value"));
  module.def("permutation", &permuted, py::arg("seed"), py::arg("count"), py::arg("threads"));
  module.def("pick", &picked<std::int64_t>, py::arg("values").noconvert(), py::arg("rows"));
  module.def("pick", &picked<float>, py::arg("values").noconvert(), py::arg("rows"));
}

}  // namespace modyn::bindings
