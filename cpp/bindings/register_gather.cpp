#include "bindings.hpp"
#include "modyn/errors.hpp"
#include "modyn/gather.hpp"

namespace modyn::bindings {
namespace {

// No forcecast: an int64 array of file numbers would wrap silently.
template <typename T>
using Column = py::array_t<T, py::array::c_style>;

void check_column(const py::array& column, const char* name, py::ssize_t count) {
  if (column.ndim() != 1 || column.size() != count) {
    throw InvalidArgument(std::string(name) + " must be an array of shape (" + std::to_string(count) + ",)");
  }
}

class Gatherer {
 public:
  Gatherer(std::size_t max_open_files, std::size_t num_threads) : files_(max_open_files), num_threads_(num_threads) {
    if (num_threads == 0) throw InvalidArgument("num_threads must be at least 1");
  }

  py::tuple gather(const py::sequence& path_objects, const Column<std::uint32_t>& file_index, const Column<std::int64_t>& offsets,
                   const py::object& lengths) {
    const std::vector<std::string> paths = to_paths(path_objects);
    const py::ssize_t count = offsets.size();
    check_column(offsets, "offsets", count);
    check_column(file_index, "file_index", count);
    Column<std::int64_t> length_column;
    const bool variable = py::isinstance<py::array>(lengths);
    if (variable) {
      length_column = lengths.cast<Column<std::int64_t>>();
      check_column(length_column, "lengths", count);
    }
    const GatherRequest request{paths,
                                file_index.data(),
                                offsets.data(),
                                variable ? length_column.data() : nullptr,
                                variable ? 0 : lengths.cast<std::int64_t>(),
                                static_cast<std::size_t>(count)};
    py::array_t<std::int64_t> bounds(count + 1);
    std::int64_t* bounds_data = bounds.mutable_data();
    gather_bounds(request, bounds_data);
    py::array_t<std::uint8_t> data(bounds_data[count]);
    std::uint8_t* into = data.mutable_data();
    {
      // Reading files takes long and touches no Python object: the arrays above are held by this call.
      const py::gil_scoped_release release;
      modyn::gather(request, bounds_data, into, files_, num_threads_);
    }
    return py::make_tuple(std::move(data), std::move(bounds));
  }

  std::size_t num_open_files() const { return files_.size(); }
  void close_files() { files_.clear(); }

 private:
  FileCache files_;
  std::size_t num_threads_;
};

}  // namespace

void register_gather(py::module_& module) {
  py::class_<Gatherer>(module, "Gatherer", py::is_final())
      .def(py::init<std::size_t, std::size_t>(), py::arg("max_open_files") = 256, py::arg("num_threads") = 1)
      .def("gather", &Gatherer::gather, py::arg("paths"), py::arg("file_index"), py::arg("offsets"), py::arg("lengths"))
      .def_property_readonly("num_open_files", &Gatherer::num_open_files)
      .def("close_files", &Gatherer::close_files);
}

}  // namespace modyn::bindings
