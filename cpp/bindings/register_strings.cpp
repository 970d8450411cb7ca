#include <pybind11/stl.h>

#include <optional>

#include "bindings.hpp"
#include "modyn/strings.hpp"

namespace modyn::bindings {
namespace {

Strings strings_of(const Array<std::int32_t>& bounds, const Array<std::uint8_t>& data) {
  check_column(bounds, "bounds");
  check_column(data, "data");
  if (bounds.size() == 0) throw InvalidArgument("bounds must hold one number more than there are strings");
  return {bounds.data(), size_of(bounds) - 1, data.data()};
}

py::array_t<std::uint64_t> hash(const Array<std::int32_t>& bounds, const Array<std::uint8_t>& data) {
  const Strings strings = strings_of(bounds, data);
  return filled_array<std::uint64_t>(static_cast<std::int64_t>(strings.size), [&](std::uint64_t* hashes) {
    check_strings(strings, size_of(data));
    for (std::size_t at = 0; at < strings.size; ++at) {
      hashes[at] = hash_string(strings.data + strings.bounds[at], static_cast<std::size_t>(strings.bounds[at + 1] - strings.bounds[at]));
    }
  });
}

py::tuple encode(const Array<std::int32_t>& bounds, const Array<std::uint8_t>& data, const std::optional<Array<std::uint8_t>>& valid,
                 std::size_t first_bit) {
  const Strings strings = strings_of(bounds, data);
  if (valid) {
    check_column(*valid, "valid");
    if (first_bit > 8 * size_of(*valid) || strings.size > 8 * size_of(*valid) - first_bit) throw InvalidArgument("valid must hold a bit for each string");
  }
  DistinctStrings distinct;
  auto codes = filled_array<std::int64_t>(static_cast<std::int64_t>(strings.size), [&](std::int64_t* values) {
    check_strings(strings, size_of(data));
    distinct = encode_strings(strings, valid ? valid->data() : nullptr, first_bit, values);
  });
  return py::make_tuple(std::move(codes), to_array(std::move(distinct.rows)), to_array(std::move(distinct.hashes)));
}

}  // namespace

void register_strings(py::module_& module) {
  module.def("hash_strings", &hash, py::arg("bounds"), py::arg("data"));
  module.def("encode_strings", &encode, py::arg("bounds"), py::arg("data"), py::arg("valid"), py::arg("first_bit"));
}

}  // namespace modyn::bindings
