#include <cstring>
#include <limits>

#include "doctest/doctest.h"
#include "modyn/numbers.hpp"

TEST_CASE("whole numbers") {
  std::int64_t value = 0;
  CHECK(modyn::parse_label(" +12\r\n", false, value).empty());
  CHECK(value == 12);
  CHECK(modyn::parse_label("-9223372036854775808", false, value).empty());
  CHECK(value == std::numeric_limits<std::int64_t>::min());
  CHECK(modyn::parse_label("9223372036854775808", false, value) == "is out of the range of an int64 label");
  for (const std::string text : {"", " ", "+", "-", "+-1", "1.0", "1 2", "0x1", "one"}) {
    CHECK(modyn::parse_label(text, false, value) == "is not an int64 label");
  }
}

TEST_CASE("decimal numbers") {
  std::int64_t bits = 0;
  double value = 0;
  CHECK(modyn::parse_label("-1.5e3", true, bits).empty());
  std::memcpy(&value, &bits, sizeof(value));
  CHECK(value == -1500.0);
  CHECK(modyn::parse_label("1e400", true, bits) == "is out of the range of a float64 label");
  CHECK(modyn::parse_label("1,5", true, bits) == "is not a float64 label");
  for (const std::string text : {"9007199254740992", "-9007199254740994", "00100000000000000000000", "9007199254740993.0", "0.1", "1e300"}) {
    CHECK(modyn::parse_label(text, true, bits).empty());
  }
  for (const std::string text : {"9007199254740993", " -9007199254740993 ", "+9223372036854775807", "100000000000000000001"}) {
    CHECK(modyn::parse_label(text, true, bits).find("no float64 is") != std::string::npos);
  }
}

TEST_CASE("times") {
  std::int64_t seconds = 0;
  const auto parse = [&](const char* text) { return modyn::parse_timestamp(text, seconds).empty() ? seconds : -99; };
  CHECK(parse("-5") == -5);
  CHECK(parse("1970-01-01") == 0);
  CHECK(parse("2000-02-29") == 951782400);
  CHECK(parse("1969-12-31 23:59:59Z") == -1);
  CHECK(parse("2024-03-01T12:30:15.75+02:00") == 1709289015);
  CHECK(parse("0001-01-01") == -62135596800);
  for (const auto* text : {"", "2001-02-29", "2000-13-01", "1900-02-29", "2000-01-01T", "2000-01-01T24:00", "2000-01-01x", "01.02.2000"}) {
    CHECK(modyn::parse_timestamp(text, seconds) == "is not a time (whole seconds or ISO 8601)");
  }
}
