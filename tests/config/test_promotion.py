"""Conditions of promotions, as users write them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from modyn.config.promotion import PromotionCondition, parse_condition
from modyn.config.serving import ServedRun
from modyn.errors import InvalidArgumentError

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.@-]{0,12}", fullmatch=True)
NUMBERS = st.integers(-(10**5), 10**5).map(lambda n: n / 1000)


@given(
    st.one_of(
        st.builds(PromotionCondition, NAMES, NAMES, st.sampled_from([">=", "<=", ">", "<"]), NUMBERS),
        st.builds(PromotionCondition, NAMES, NAMES, st.just(""), NUMBERS.map(abs), st.sampled_from(["", "1d", "90m"])),
    )
)
def test_a_condition_is_read_as_it_is_written(condition: PromotionCondition) -> None:
    assert parse_condition(str(condition)) == condition
    assert parse_condition(f"  {condition}  ") == condition


def test_names_of_metrics_may_have_spaces() -> None:
    assert parse_condition("top 5 on test set-1 >=.5".replace("test set-1", "test")) == PromotionCondition(
        "top 5", "test", ">=", 0.5
    )
    assert parse_condition("click rate on ads not  worse than promoted by 1e-3").number == 0.001


@pytest.mark.parametrize(
    "text",
    ["", "Accuracy >= 0.9", "Accuracy on test", "Accuracy on test => 0.9", "Accuracy on test >= much", "Accuracy on test >= 1e999",
     "Accuracy on test not worse than serving", "Accuracy on test not worse than promoted by -1"],
)  # fmt: skip
def test_a_text_that_is_not_a_condition_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{re.escape(text)}' is not a condition of a promotion; write, for example"):
        parse_condition(text)


def test_the_section_says_which_condition_is_wrong_and_what_contradicts_it() -> None:
    with pytest.raises(ValidationError, match="'Accuracy > 1' is not a condition"):
        ServedRun(promote_if=("Accuracy on test >= 0.5", "Accuracy > 1"))
    with pytest.raises(
        ValidationError, match="promote_if decides which version serves, but with follow: newest each version serves"
    ):
        ServedRun(promote_if=("Accuracy on test >= 0.5",), follow="newest")


@pytest.mark.parametrize(
    ("text", "value", "promoted", "low_is_good", "holds"),
    [
        ("m on d >= 0.9", 0.9, None, False, True),
        ("m on d > 0.9", 0.9, None, False, False),
        ("m on d <= 0.9", 0.91, None, True, False),
        ("m on d < 0.9", 0.89, None, True, True),
        ("m on d not worse than promoted", 0.9, 0.9, False, True),
        ("m on d not worse than promoted", 0.89, 0.9, False, False),
        ("m on d not worse than promoted", 0.89, 0.9, True, True),
        ("m on d not worse than promoted by 0.02", 0.89, 0.9, False, True),
        ("m on d not worse than promoted by 0.02", 0.93, 0.9, True, False),
        ("m on d not worse than promoted", 0.0, None, False, True),
        ("m on d not worse than promoted by 0.1", 0.3, 0.4, False, True),
        ("m on d not worse than promoted by 0.2", 0.3, 0.1, True, True),
        ("m on d not worse than promoted by 0.1", 0.3 - 1e-6, 0.4, False, False),
        ("m on d >= 0.3", 1 - 0.7, None, False, True),
        ("m on d < 0.3", 1 - 0.7, None, False, False),
        *((f"m on d {sign} 1", math.nan, None, True, False) for sign in ("<", "<=", ">", ">=")),
        ("m on d not worse than promoted", math.nan, 1.0, True, False),
        ("m on d not worse than promoted by 5", math.inf, 1.0, True, False),
        ("m on d not worse than promoted", -math.inf, 1.0, False, False),
        ("m on d not worse than promoted", 1.0, math.inf, True, True),
    ],
)
def test_what_holds(text: str, value: float, promoted: float | None, low_is_good: bool, holds: bool) -> None:
    assert parse_condition(text).holds(value, promoted, low_is_good=low_is_good) is holds
