"""Each format takes the times that all samples of a file share, and those at its own place in a row; others are refused."""

from __future__ import annotations

import pytest

from modyn.errors import ConfigError
from modyn.storage.formats import build_format

OPTIONS: dict[str, dict[str, object]] = {
    "BinaryFileWrapper": {"record_size": 40, "label_size": 4},
    "CsvFileWrapper": {"label_index": 0},
    "JsonLinesFileWrapper": {"label_field": "y"},
    "ParquetFileWrapper": {"payload_columns": ["x"], "label_column": "y"},
    "TarFileWrapper": {"payload_extension": "jpg", "label_extension": "json", "label_field": "y"},
}
PLACES = {"field:4": ["Binary"], "column:1": ["Csv"], "column:time": ["Parquet"], "field:time": ["JsonLines", "Tar"]}


@pytest.mark.parametrize("wrapper", OPTIONS)
@pytest.mark.parametrize("source", ["", "name:([0-9]+)", *PLACES])
def test_a_place_is_for_the_formats_that_have_it(wrapper: str, source: str) -> None:
    if source in PLACES and wrapper.removesuffix("FileWrapper") not in PLACES[source]:
        with pytest.raises(
            ConfigError, match=rf"timestamp_source '{source}' is for other formats; a {wrapper} allows '', 'name:REGEX'"
        ):
            build_format(wrapper, OPTIONS[wrapper], source)
    else:
        build_format(wrapper, OPTIONS[wrapper], source)
