"""Each format takes the times that all samples of a file share, and those at its own place in a row; others are refused."""

from __future__ import annotations

import pytest

from modyn.errors import ConfigError, DataError
from modyn.storage.formats import build_format
from modyn.storage.formats.timestamps import name_pattern

OPTIONS: dict[str, dict[str, object]] = {
    "BinaryFileWrapper": {"record_size": 40, "label_size": 4},
    "CsvFileWrapper": {"label_index": 0},
    "JsonLinesFileWrapper": {"label_field": "y"},
    "ParquetFileWrapper": {"payload_columns": ["x"], "label_column": "y"},
    "SingleSampleFileWrapper": {"file_extension": ".png", "label_file_extension": ".label"},
    "TarFileWrapper": {"payload_extension": "jpg", "label_extension": "json", "label_field": "y"},
}
PLACES = {"field:4": ["Binary"], "column:1": ["Csv"], "column:time": ["Csv", "Parquet"], "field:time": ["JsonLines", "Tar"]}


@pytest.mark.parametrize("wrapper", OPTIONS)
@pytest.mark.parametrize("source", ["", "name:([0-9]+)", *PLACES])
def test_a_place_is_for_the_formats_that_have_it(wrapper: str, source: str) -> None:
    if source in PLACES and wrapper.removesuffix("FileWrapper") not in PLACES[source]:
        refused = rf"timestamp_source '{source}' is for other formats; a {wrapper} allows '', 'name:REGEX'"
        if wrapper == "SingleSampleFileWrapper":
            refused = "has no rows: .* allows '' and 'name:REGEX'"
        with pytest.raises(ConfigError, match=refused):
            build_format(wrapper, OPTIONS[wrapper], source)
    else:
        build_format(wrapper, OPTIONS[wrapper], source)


@pytest.mark.parametrize(
    ("regex", "name", "expected"),
    [
        ("([0-9]+)", "a_20_30.png", 20),
        ("_([0-9]+)[.]", "a_20_30.png", 30),
        ("(?P<date>[0-9]{8})", "a_19700102.png", 86_400),
        ("([0-9]+)s|(?P<date>[0-9-]+)d", "1970-01-02d.png", 86_400),
        ("([0-9]+)s|(?P<date>[0-9-]+)d", "77s.png", 77),
        ("(?i)T([0-9]+)", "t5.png", 5),
        ("(-?[0-9]+)", "x\n-5.png", -5),
        (r"day-(\d{4}-\d\d-\d\d)", "day-1970-01-02_7.png", 86_400),
        (r"(\d{8}T\d{6}Z)", "19700101T000130Z.png", 90),
        ("([0-9]+)", "\udcff7.png", 7),
        ("ä([0-9]+)", "ä7.png", 7),
    ],
)
def test_the_time_is_the_group_of_the_first_match(regex: str, name: str, expected: int) -> None:
    pattern = name_pattern(f"name:{regex}")
    assert pattern is not None
    assert pattern.times([f"/1/{name}", f"/2/{name}"]) == [expected, expected]


def test_a_pattern_that_backtracks_takes_no_time() -> None:
    """Python's own would not end, and hold up all threads of storage."""
    pattern = name_pattern("name:((a*)*)*c([0-9]+)")
    assert pattern is not None
    (error,) = pattern.times(["a" * 200 + "b"])
    assert "holds no time" in str(error)


@pytest.mark.parametrize("regex", ["(?=a)([0-9]+)", r"([0-9])\1", "(((a{1000}){1000}){1000})", "(" + "a" * 1000 + ")", "("])
def test_a_pattern_that_cannot_be_searched_in_bounded_time_is_refused(regex: str) -> None:
    with pytest.raises(ConfigError, match="RE2|at most 1000"):
        name_pattern(f"name:{regex}")


def test_a_time_in_a_name_may_have_a_format_of_its_own() -> None:
    pattern = name_pattern(r"name:cam_(.+)\.png", "%d%b%Y_%Hh%M")
    assert pattern is not None
    good, bad = pattern.times(["/x/cam_02Jan1970_01h00.png", "/x/cam_1970-01-02.png"])
    assert good == 90_000
    assert isinstance(bad, DataError)
    assert "'1970-01-02' is not written as timestamp_format '%d%b%Y_%Hh%M'" in bad.message
    zoned = name_pattern(r"name:(.+)", "%Y%m%dT%H%M%S%z")
    assert zoned is not None
    assert zoned.times(["19700101T010000+0100"]) == [0]


@pytest.mark.parametrize(
    ("source", "time_format", "message"),
    [
        ("", "%Y%m%d", "timestamp_format is for times in rows and in names of files"),
        ("name:(.+)", "%Q", "has a directive that is not known: %Q"),
        ("column:1", "%H%M", "leaves out year, month or day"),
        ("column:1", "seconds", "leaves out year, month or day"),
    ],
)
def test_wrong_formats_are_refused(source: str, time_format: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_format("CsvFileWrapper", {"label_index": 0, "timestamp_format": time_format}, source)
