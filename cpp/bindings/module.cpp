// The Python module modyn._core. Its types are written down in modyn/_core.pyi.
#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core: gathering records from files, indexing CSV, looking keys up, mapping our own files.";
  modyn::bindings::register_errors(module);
  modyn::bindings::register_gather(module);
  modyn::bindings::register_csv(module);
  modyn::bindings::register_files(module);
  modyn::bindings::register_index(module);
  modyn::bindings::register_key_set(module);
  modyn::bindings::register_arrays(module);
}
