#include <algorithm>
#include <optional>

#include "bindings.hpp"
#include "modyn/column.hpp"
#include "modyn/errors.hpp"
#include "modyn/sample_index.hpp"

namespace modyn::bindings {
namespace {

// A column with its memory: `content` holds it, and the map that it is a part of.
class StoredColumn {
 public:
  StoredColumn(Array<std::uint8_t> content, const std::string& encoding, std::size_t width, std::int64_t num_rows)
      : column(Column::constant(0)), num_rows_(num_rows), content_(std::move(content)) {
    check_one_dimension(content_, "content");
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
    return column.at(row);
  }

  Int64Array take(const Int64Array& rows) const {
    check_one_dimension(rows, "rows");
    const auto count = static_cast<std::size_t>(rows.size());
    const std::int64_t* const wanted = rows.data();
    const std::int64_t* wrong = wanted + count;
    auto values = filled_array<std::int64_t>(rows.size(), [&](std::int64_t* into) {  // may wait for the disk
      wrong = std::find_if(wanted, wanted + count, [this](std::int64_t row) { return row < 0 || row >= num_rows_; });
      if (wrong == wanted + count) column.read(wanted, count, into);
    });
    if (wrong != wanted + count) throw py::index_error(outside(*wrong));
    return values;
  }

  Int64Array slice(std::int64_t start, std::int64_t stop) const {
    if (start < 0 || start > stop || stop > num_rows_) {
      throw py::index_error("rows " + std::to_string(start) + " to " + std::to_string(stop) + " of " + std::to_string(num_rows_));
    }
    return filled_array<std::int64_t>(stop - start, [&](std::int64_t* into) {  // may wait for the disk
      for (std::int64_t row = start; row < stop; ++row) into[row - start] = column.at(row);
    });
  }

  Column column;

 private:
  std::string outside(std::int64_t row) const { return "row " + std::to_string(row) + " of " + std::to_string(num_rows_); }

  std::int64_t num_rows_;
  Array<std::uint8_t> content_;
};

// The index with the columns that it reads.
class StoredIndex {
 public:
  StoredIndex(const Int64Array& first_keys, py::tuple columns) : columns_(std::move(columns)), index_(views(first_keys)) {}

  py::object locate(const Int64Array& keys) const { return look_up(keys, Columns{true, false, false}); }
  py::object entries(const Int64Array& keys) const { return look_up(keys, Columns{true, true, false}); }
  py::object labels_and_timestamps(const Int64Array& keys) const { return look_up(keys, Columns{false, true, true}); }

  py::array_t<bool> contains(const Int64Array& keys) const {
    check_one_dimension(keys, "keys");
    return filled_array<bool>(keys.size(),
                              [&](bool* found) { index_.contains(keys.data(), static_cast<std::size_t>(keys.size()), found); });
  }

 private:
  struct Columns {
    bool locations, labels, timestamps;
  };

  std::vector<SegmentView> views(const Int64Array& first_keys) const {
    check_one_dimension(first_keys, "first_keys");
    if (first_keys.size() != static_cast<py::ssize_t>(columns_.size())) throw InvalidArgument("as many first keys as segments are needed");
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

  py::object look_up(const Int64Array& keys, Columns wanted) const {
    check_one_dimension(keys, "keys");
    const py::ssize_t count = keys.size();
    const auto common_length = index_.common_length();
    Answers answers;
    py::list columns;
    const auto add = [&](auto*& into, bool needed) {
      if (!needed) return;
      auto column = new_array<std::remove_reference_t<decltype(*into)>>(count);
      into = column.mutable_data();
      columns.append(column);
    };
    add(answers.file_ids, wanted.locations);
    add(answers.offsets, wanted.locations);
    add(answers.lengths, wanted.locations && !common_length);
    if (wanted.locations && common_length) columns.append(*common_length);
    add(answers.labels, wanted.labels);
    add(answers.timestamps, wanted.timestamps);
    // Pages of the map may have to be read. This object holds the map.
    const bool known = without_gil([&] { return index_.look_up(keys.data(), static_cast<std::size_t>(count), answers); });
    if (!known) return py::none();
    return py::tuple(columns);
  }

  py::tuple columns_;
  SampleIndex index_;
};

py::object runs_of(const Int64Array& values, std::size_t max_runs) {
  check_one_dimension(values, "values");
  Runs runs = without_gil([&] { return find_runs(values.data(), static_cast<std::size_t>(values.size()), max_runs); });
  if (runs.starts.empty() && values.size() > 0) return py::none();
  return py::make_tuple(to_array(std::move(runs.starts)), to_array(std::move(runs.values)), to_array(std::move(runs.strides)));
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
      .def("locate", &StoredIndex::locate, py::arg("keys"))
      .def("entries", &StoredIndex::entries, py::arg("keys"))
      .def("labels_and_timestamps", &StoredIndex::labels_and_timestamps, py::arg("keys"))
      .def("contains", &StoredIndex::contains, py::arg("keys"));
  module.def("find_runs", &runs_of, py::arg("values"), py::arg("max_runs"));
}

}  // namespace modyn::bindings
