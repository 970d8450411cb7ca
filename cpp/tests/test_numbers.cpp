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
  CHECK(modyn::parse_label("9223372036854775808", false, value) == "'9223372036854775808' is out of the range of an int64 label");
  for (const std::string text : {"", " ", "+", "-", "+-1", "1.0", "1 2", "0x1", "one"}) {
    CHECK(modyn::parse_label(text, false, value).find("is not an int64 label") != std::string::npos);
  }
}

TEST_CASE("decimal numbers") {
  std::int64_t bits = 0;
  double value = 0;
  CHECK(modyn::parse_label("-1.5e3", true, bits).empty());
  std::memcpy(&value, &bits, sizeof(value));
  CHECK(value == -1500.0);
  CHECK(modyn::parse_label("1e400", true, bits) == "'1e400' is out of the range of a float64 label");
  CHECK(modyn::parse_label("1,5", true, bits) == "'1,5' is not a float64 label");
  for (const std::string text : {"9007199254740992", "-9007199254740994", "00100000000000000000000", "9007199254740993.0", "0.1", "1e300"}) {
    CHECK(modyn::parse_label(text, true, bits).empty());
  }
  for (const std::string text : {"9007199254740993", " -9007199254740993 ", "+9223372036854775807", "100000000000000000001"}) {
    CHECK(modyn::parse_label(text, true, bits).find("no float64 is") != std::string::npos);
  }
}
