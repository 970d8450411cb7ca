#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/errors.hpp"
#include "modyn/times.hpp"

namespace {

constexpr std::int64_t none = -99;

std::int64_t parse(const char* text, const char* format = "", bool typed = false) {
  std::int64_t seconds = 0;
  return modyn::TimeFormat(format).read(text, typed, seconds) ? seconds : none;
}

std::string problem(const char* text, const char* format = "") { return modyn::TimeFormat(format).problem_of(std::string_view(text)); }

}  // namespace

TEST_CASE("seconds and ISO 8601") {
  CHECK(parse("-5") == -5);
  CHECK(parse(" +1700000000.9 ") == 1700000000);
  CHECK(parse("-1.5") == -2);
  CHECK(parse("1970-01-01") == 0);
  CHECK(parse("2000-02-29") == 951782400);
  CHECK(parse("1969-12-31 23:59:59Z") == -1);
  CHECK(parse("2024-03-01T12:30:15.75+02:00") == 1709289015);
  CHECK(parse("2024-03-01_12:30:15 UTC") == 1709296215);
  CHECK(parse("20240301T103015Z") == 1709289015);
  CHECK(parse("2024-W09-5") == 1709251200);
  CHECK(parse("2020W537") == 1609632000);
  CHECK(parse("0001-01-01") == modyn::first_second);
  CHECK(parse("9999-12-31T23:59:59.9") == modyn::last_second);
  for (const auto* text : {"", "2001-02-29", "2000-13-01", "1900-02-29", "2000-01-01T", "2000-01-01T24:00", "2000-01-01x", "01.02.2000", "2013-01-31-05:00", "2021-W53-1",
                           "0001-01-01T00:00+01:00", "9999-12-31T23:59-01:00", "1712010102345", "1e9", "-", ".5"}) {
    CHECK(parse(text) == none);
    CHECK(parse(text, "", true) == none);
  }
}

TEST_CASE("digits that are no seconds") {
  for (const auto* text : {"20130131", "20130131.0", "20130230", "20130000", "19991301.0", "21001232", "1706745600000", "-99999999999", "20130131101500", "99999999999999999999"}) CHECK(parse(text) == none);
  CHECK(parse("20130131", "", true) == 1359590400);
  CHECK(parse("18991231") == 18991231);
  CHECK(parse("21010101") == 21010101);
  CHECK(parse("20130230", "s") == 20130230);
  CHECK(parse("20130230", "", true) == none);
  CHECK(parse("20130131", "s") == 20130131);
  CHECK(parse("253402300800", "s") == none);
  CHECK(parse("1706745600999", "ms") == 1706745600);
  CHECK(parse("-1", "us") == -1);
  CHECK(parse("9223372036854775807", "ns") == 9223372036);
  CHECK(problem("20130131") == "'20130131' is most likely not a time in seconds since 1970; set the option timestamp_format='%Y%m%d' if it is 2013-01-31 00:00:00, or "
                               "set the option timestamp_format='s' if it is 1970-08-21 23:42:11");
  CHECK(problem("20130230") == "'20130230' has the digits of a date, YYYYMMDD, and is not a day of the calendar; correct it, or set the option timestamp_format='s' if "
                               "the column counts seconds from 0");
  CHECK(problem("20240230", "%Y%m%d") == "'20240230' is not written as timestamp_format '%Y%m%d', and is not a day of the calendar; correct it");
  CHECK(modyn::TimeFormat("%Y%m%d").advice_for("20240230.0").empty());
  CHECK(problem("1706745600000").find("timestamp_format='ms' if it is 2024-02-01 00:00:00") != std::string::npos);
  CHECK(problem("1706745600000000").find("timestamp_format='us' if it is 2024-02-01 00:00:00") != std::string::npos);
}

TEST_CASE("many numbers at once") {
  const modyn::TimeFormat format;
  const std::vector<std::int64_t> good = {0, -5, 18999999, 21010001, 99'999'999'999, modyn::first_second};
  CHECK(format.are_seconds(good.data(), good.size()));
  for (const std::int64_t number : {std::int64_t{20130131}, std::int64_t{100'000'000'000}, modyn::first_second - 1, std::int64_t{1} << 62, -(std::int64_t{1} << 62)}) {
    std::int64_t seconds = 0;
    CHECK_FALSE(format.are_seconds(&number, 1));
    CHECK_FALSE(format.read(number, seconds));
  }
  CHECK_FALSE(modyn::TimeFormat("ms").are_seconds(good.data(), good.size()));
}

TEST_CASE("patterns") {
  CHECK(parse("31/01/2013", "%d/%m/%Y") == 1359590400);
  CHECK(parse("1.2.2013  9:05 pm", "%d.%m.%Y %I:%M %p") == 1359752700);
  CHECK(parse("Thu, 31 Jan 2013 01:00:00 +0100", "%a, %d %B %Y %T %z") == 1359590400);
  CHECK(parse("2013031", "%Y%j") == 1359590400);
  CHECK(parse("13-100%", "%y-1%m%%") == none);
  CHECK(parse("201311", "%Y%m") == 1383264000);
  for (const auto* text : {"31/13/2013", "2013-01-31", "31/01/2013 ", "31/01/20131", ""}) CHECK((parse(text, "%d/%m/%Y") == none) == (std::string(text) != "31/01/2013 "));
  CHECK(parse("2013111", "%Y%m%d") == none);
  for (const auto* format : {"%Q", "%H:%M", "%Y %d", "%Y-%m %H", "%Y%m%d%Y", "%Y-%m-%d %I", "%", "soon", "%Y-%m-%d %S"}) {
    CHECK_THROWS_AS(modyn::TimeFormat{format}, modyn::InvalidArgument);
  }
}

TEST_CASE("advice reads the text") {
  for (const auto* text : {"31/01/2013 10:15", "01/31/2013", "Jan 31, 2013", "31-Jan-2013 10:15:00", "31/Jan/2013:10:15:00 +0000", "2013/01/31 10:15:00", "20130131101500"}) {
    const std::string found = problem(text);
    const std::size_t begin = found.find("timestamp_format='") + 18;
    CHECK(parse(text, found.substr(begin, found.find('\'', begin) - begin).c_str()) / 86400 == 15736);
  }
  CHECK(problem("soon") == "'soon' is neither a time in seconds since 1970 nor ISO 8601; correct it, or set the option timestamp_format to how times are written, such as "
                           "'%d/%m/%Y %H:%M' or 'ms'");
}

TEST_CASE("what is quoted") {
  for (const auto* text : {"abc", "-1.5e10", "N/A", "31Jan2013", "20130131T101500Z", "hello world"}) CHECK(modyn::quoted(text) == "'" + std::string(text) + "'");
  for (const auto* text : {"", "PASSWORD=7secret7", "7secret7", "a@b", "abcdefghijklmnop", "a\nb"}) CHECK(modyn::quoted(text).empty());
}

TEST_CASE("years") {
  CHECK(parse("2013", "%Y") == 1356998400);
  CHECK(parse("2013.0", "%Y.0") == 1356998400);
  CHECK(problem("240301", "%d/%m/%Y").find("timestamp_format='%y%m%d' if it is 2024-03-01 00:00:00") != std::string::npos);
  CHECK(parse("2013") == 2013);  // a time of a stream that counts from 0; storage compares all times of a file
  CHECK(problem("2013", "%d/%m/%Y").find("timestamp_format='%Y' if it is 2013-01-01 00:00:00") != std::string::npos);
}
