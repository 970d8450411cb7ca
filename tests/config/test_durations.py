"""Durations have the same meaning in all notations."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from modyn.config.durations import SECONDS, Duration, Timestamp, format_timestamp, parse_duration, parse_timestamp

UNITS = st.sampled_from(sorted(SECONDS))
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))


class Times(BaseModel):
    """Both kinds, as configuration sections have them."""

    every: Duration = 1
    since: Timestamp = 0


@given(st.integers(0, 10**9), UNITS, st.sampled_from(["", " ", "  "]))
def test_a_duration_is_number_times_unit(number: int, unit: str, space: str) -> None:
    assert parse_duration(f"{space}{number}{space}{unit}{space}") == number * SECONDS[unit]


@given(st.integers())
def test_a_plain_number_is_seconds(seconds: int) -> None:
    assert parse_duration(seconds) == seconds


@pytest.mark.parametrize("value", ["3", "d", "3 days", "-1d", "1.5d", "1d2h", "", True, None, 1.5, [1], "3D"])
def test_what_is_not_a_duration_is_told(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write <int> and one of s m h d w y, for example '3d'"):
        parse_duration(value)


@given(MOMENTS)
def test_a_date_is_the_same_moment_as_text_and_as_object(moment: dt.datetime) -> None:
    whole = moment.replace(microsecond=0)
    expected = int((whole - dt.datetime(1970, 1, 1)).total_seconds())
    assert parse_timestamp(whole) == expected
    assert parse_timestamp(whole.isoformat()) == expected
    assert parse_timestamp(whole.replace(tzinfo=dt.UTC).isoformat()) == expected
    if (
        not 1900_00_00 <= expected < 2101_00_00 and not 1900 <= expected <= 2100 and expected < 10**11
    ):  # which are refused, as below
        assert parse_timestamp(f" {expected} ") == expected


@given(MOMENTS)
def test_parts_of_a_second_are_cut_towards_the_past(moment: dt.datetime) -> None:
    assert parse_timestamp(moment) == parse_timestamp(moment.replace(microsecond=0))


def test_a_date_may_have_a_zone() -> None:
    assert parse_timestamp("1970-01-01T02:00:00+02:00") == 0
    assert parse_timestamp("1969-12-31") == -86_400
    assert parse_timestamp(dt.date(1970, 1, 2)) == 86_400


@pytest.mark.parametrize("value", ["yesterday", "2014-13-01", "2014-02-30", True, None, 1.5, "", "1e3"])
def test_what_is_not_a_timestamp_is_told(value: object) -> None:
    with pytest.raises(ValueError, match="is not a timestamp; write seconds since 1970 or a date such as 2014-01-31"):
        parse_timestamp(value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, str(2**63)])
def test_a_timestamp_fits_into_64_bits(value: int | str) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        parse_timestamp(value)
    assert parse_timestamp(2**63 - 1) == 2**63 - 1


def test_sections_take_them_as_users_write_them() -> None:
    times = Times.model_validate({"every": "2w", "since": "2014-01-31"})
    assert (times.every, times.since) == (14 * 86_400, 1_391_126_400)
    with pytest.raises(ValidationError, match="is not a duration"):
        Times.model_validate({"every": "soon"})


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (20130131, "2013-01-31"),
        ("20130131", "2013-01-31"),
        (2013, "2013-01-01"),
        ("2100", "2100-01-01"),
        (1359636300123, "2013-01-31 12:45:00"),
        (1359636300123456789, "2013-01-31 12:45:00"),
    ],
)
def test_digits_that_are_a_date_or_a_finer_unit_are_refused(value: int | str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"is probably not in seconds since 1970; write '{meant}'"):
        parse_timestamp(value)
    assert format_timestamp(parse_timestamp(meant)).startswith(meant)


@pytest.mark.parametrize("value", [20130230, "20130000", 1900_00_00])
def test_digits_of_a_day_that_does_not_exist_are_refused(value: int | str) -> None:
    with pytest.raises(ValueError, match=f"{value}'? has the digits of a date, but is not a day of the calendar"):
        parse_timestamp(value)
    assert [parse_timestamp(18_99_99_99), parse_timestamp(2101_00_00)] == [18999999, 21010000]


def test_a_year_is_refused_with_both_times_that_it_may_be() -> None:
    with pytest.raises(ValueError, match=r"write '2013-01-01', or '1970-01-01 00:33:33' for the second$"):
        parse_timestamp(2013)
    assert [parse_timestamp("1970-01-01 00:33:33"), parse_timestamp(1899), parse_timestamp("2101")] == [2013, 1899, 2101]
