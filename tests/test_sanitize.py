"""Whatever a user's exception says and a file is called can be stored and sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modyn.sanitize import sanitize


@given(st.text(st.characters()))
def test_any_text_becomes_storable(text: str) -> None:
    stored = sanitize(text)
    assert "\0" not in stored
    stored.encode()
    assert sanitize(stored) == stored


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_what_is_storable_stays_as_it_is(text: str) -> None:
    assert sanitize(text) == text
