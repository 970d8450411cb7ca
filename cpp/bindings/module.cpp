// The Python module modyn._core. modyn/_core.pyi declares its types. C++ exceptions become subclasses of modyn.errors, whose attributes hold the
// details.
#include "bindings.hpp"
#include "modyn/errors.hpp"

namespace modyn::bindings {
namespace {

// Looked up when an error occurs: by then the module is complete. A stored reference would outlive the interpreter.
py::object error_class(const char* module, const char* name) { return py::module_::import(module).attr(name); }

const char* class_name(FileFault fault) {
  if (fault == FileFault::vanished) return "FileVanishedError";
  if (fault == FileFault::truncated) return "FileTruncatedError";
  if (fault == FileFault::changed) return "FileChangedError";
  if (fault == FileFault::permission) return "FilePermissionError";
  return "FileAccessError";
}

void raise(const py::object& error) { PyErr_SetObject(py::type::of(error).ptr(), error.ptr()); }

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const FileError& error) {
    const py::object raised = error_class("modyn._core", class_name(error.fault))(from_text(error.what()));
    raised.attr("path") = from_path(error.path);
    raised.attr("offset") = error.offset;
    raised.attr("wanted") = error.wanted;
    raised.attr("available") = error.available;
    raise(raised);
  } catch (const CsvError& error) {
    const py::object raised = error_class("modyn._core", "CsvError")(from_text(error.what()));
    raised.attr("path") = from_path(error.path);
    raised.attr("line") = error.line;
    raised.attr("row") = error.row;
    raised.attr("offset") = error.offset;
    raise(raised);
  } catch (const MapCut& error) {
    raise(error_class("modyn.errors", "CorruptStateError")(from_text(error.what())));
  } catch (const InvalidArgument& error) {
    raise(error_class("modyn.errors", "InvalidArgumentError")(from_text(error.what())));
  }
}

py::object define(py::module_& module, const char* name, const py::object& base) {
  const std::string full_name = std::string("modyn._core.") + name;
  auto defined = py::reinterpret_steal<py::object>(PyErr_NewException(full_name.c_str(), base.ptr(), nullptr));
  if (!defined) throw py::error_already_set();
  module.attr(name) = defined;
  return defined;
}

void register_errors(py::module_& module) {
  const py::object data_error = error_class("modyn.errors", "DataError");
  const py::object access = define(module, "FileAccessError", data_error);
  define(module, "FileVanishedError", access);
  define(module, "FileTruncatedError", access);
  define(module, "FileChangedError", access);
  define(module, "FilePermissionError", access);
  define(module, "CsvError", data_error);
  py::register_local_exception_translator(&translate);
}

}  // namespace
}  // namespace modyn::bindings

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core: gathering records from files, indexing CSV, looking keys up, drawing samples, mapping our own files, hashing strings.";
  modyn::bindings::register_errors(module);
  modyn::bindings::register_gather(module);
  modyn::bindings::register_times(module);  // before files, which take formats of times as arguments
  modyn::bindings::register_checksum(module);
  modyn::bindings::register_files(module);
  modyn::bindings::register_index(module);
  modyn::bindings::register_selection(module);
  modyn::bindings::register_strata(module);
  modyn::bindings::register_strings(module);
}
