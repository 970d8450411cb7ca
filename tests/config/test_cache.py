"""Sizes as users write them."""

from __future__ import annotations

import pytest

from modyn.config.cache import parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("2GB", 2 * 10**9), ("512 MiB", 2**29), ("1.5kb", 1500), ("0B", 0), (" 3 tib ", 3 * 2**40), (17, 17), ("0.0004KB", 0)],
)
def test_a_number_and_a_unit(text: object, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["2", "GB", "-1GB", "2 XB", "2GB!", "1e9B", "", True, None, 2.5])
def test_anything_else_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="is not a size; write a number and one of .* for example '2GB'"):
        parse_size(text)
