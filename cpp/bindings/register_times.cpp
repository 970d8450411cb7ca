#include <type_traits>

#include "bindings.hpp"
#include "modyn/times.hpp"

namespace modyn::bindings {
namespace {

// Converts `count` values into seconds. Returns the position of the first value that is not a time, or -1, and what is wrong with it. `read(i,
// seconds)` reads value i.
template <typename Read, typename Problem>
py::tuple read_all(std::size_t count, const Read& read, const Problem& problem) {
  std::int64_t first_bad = -1;
  auto seconds = filled_array<std::int64_t>(static_cast<std::int64_t>(count), [&](std::int64_t* values) {
    for (std::size_t i = 0; i < count && first_bad < 0; ++i) {
      if (!read(i, values[i])) first_bad = static_cast<std::int64_t>(i);
    }
  });
  const std::string reason = first_bad < 0 ? std::string() : problem(static_cast<std::size_t>(first_bad));
  return py::make_tuple(std::move(seconds), first_bad, from_text(reason));
}

py::tuple of_texts(const TimeFormat& format, const Int64Array& bounds, const Array<std::uint8_t>& data) {
  check_column(bounds, "bounds");
  check_column(data, "data");
  const std::size_t count = size_of(bounds) == 0 ? 0 : size_of(bounds) - 1;
  const std::int64_t* const ends = bounds.data();
  for (std::size_t i = 0; i < count; ++i) {
    if (ends[i] < 0 || ends[i] > ends[i + 1] || static_cast<std::size_t>(ends[i + 1]) > size_of(data)) throw InvalidArgument("bounds must ascend within data");
  }
  const auto* const text = reinterpret_cast<const char*>(data.data());
  const auto at = [&](std::size_t i) { return std::string_view(text + ends[i], static_cast<std::size_t>(ends[i + 1] - ends[i])); };
  return read_all(
      count, [&](std::size_t i, std::int64_t& seconds) { return format.read(at(i), true, seconds); },
      [&](std::size_t i) { return format.problem_of(at(i)); });
}

template <typename Number>
py::tuple of_numbers(const TimeFormat& format, const Array<Number>& numbers) {
  check_column(numbers, "numbers");
  const Number* const values = numbers.data();
  if constexpr (std::is_integral_v<Number>) {
    if (without_gil([&] { return format.are_seconds(values, size_of(numbers)); })) return py::make_tuple(numbers, -1, "");
  }
  return read_all(
      size_of(numbers), [&](std::size_t i, std::int64_t& seconds) { return format.read(values[i], seconds); },
      [&](std::size_t i) { return format.problem_of(values[i]); });
}

std::int64_t of_text(const TimeFormat& format, const std::string& text, bool typed) {
  std::int64_t seconds = 0;
  if (!format.read(text, typed, seconds)) throw py::value_error(from_text(format.problem_of(text)).cast<std::string>());
  return seconds;
}

template <typename Number>
std::int64_t of_number(const TimeFormat& format, Number number) {
  std::int64_t seconds = 0;
  if (!format.read(number, seconds)) throw py::value_error(format.problem_of(number));
  return seconds;
}

}  // namespace

void register_times(py::module_& module) {
  module.attr("FIRST_SECOND") = first_second;
  module.attr("LAST_SECOND") = last_second;
  py::class_<TimeFormat>(module, "TimeFormat", py::is_final())
      .def(py::init([](const std::string& text) { return TimeFormat(text); }), py::arg("text") = "")
      .def("of_text", &of_text, py::arg("text"), py::kw_only(), py::arg("typed") = false)
      .def("of_integer", &of_number<std::int64_t>, py::arg("number"))
      .def("of_float", &of_number<double>, py::arg("number"))
      .def("advice_for", [](const TimeFormat& format, const std::string& text) { return from_text(format.advice_for(text)); }, py::arg("text"))
      .def("of_texts", &of_texts, py::arg("bounds"), py::arg("data"))
      .def("of_integers", &of_numbers<std::int64_t>, py::arg("numbers"))
      .def("of_floats", &of_numbers<double>, py::arg("numbers"));
  module.def("show_time", &show_time, py::arg("seconds"));
  module.def("quoted", [](const std::string& text) { return from_text(quoted(text)); }, py::arg("text"));
}

}  // namespace modyn::bindings
