#include <limits>

#include "doctest/doctest.h"
#include "modyn/numbers.hpp"

using modyn::Parsed;

TEST_CASE("whole numbers") {
  std::int64_t value = 0;
  CHECK(modyn::parse_int64(" +12\r\n", value) == Parsed::ok);
  CHECK(value == 12);
  CHECK(modyn::parse_int64("-9223372036854775808", value) == Parsed::ok);
  CHECK(value == std::numeric_limits<std::int64_t>::min());
  CHECK(modyn::parse_int64("9223372036854775808", value) == Parsed::out_of_range);
  for (const auto* text : {"", " ", "+", "-", "+-1", "1.0", "1 2", "0x1", "one"}) {
    CAPTURE(text);
    CHECK(modyn::parse_int64(text, value) == Parsed::not_a_number);
  }
}

TEST_CASE("decimal numbers") {
  double value = 0;
  CHECK(modyn::parse_float64("-1.5e3", value) == Parsed::ok);
  CHECK(value == -1500.0);
  CHECK(modyn::parse_float64("1e400", value) == Parsed::out_of_range);
  CHECK(modyn::parse_float64("1,5", value) == Parsed::not_a_number);
}

TEST_CASE("times") {
  std::int64_t seconds = 0;
  const auto parse = [&](const char* text) { return modyn::parse_timestamp(text, seconds) == Parsed::ok ? seconds : -99; };
  CHECK(parse("-5") == -5);
  CHECK(parse("1970-01-01") == 0);
  CHECK(parse("2000-02-29") == 951782400);
  CHECK(parse("1969-12-31 23:59:59Z") == -1);
  CHECK(parse("2024-03-01T12:30:15.75+02:00") == 1709289015);
  CHECK(parse("0001-01-01") == -62135596800);
  for (const auto* text : {"", "2001-02-29", "2000-13-01", "1900-02-29", "2000-01-01T", "2000-01-01T24:00", "2000-01-01x", "01.02.2000"}) {
    CAPTURE(text);
    CHECK(modyn::parse_timestamp(text, seconds) == Parsed::not_a_number);
  }
}
