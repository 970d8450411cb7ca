"""Tables of triggers' choices as text, for the report and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pandas as pd

from modyn.config.selection_advice import GDUMB_FULL, RHO_LOSS_FIRST

Cells = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""A function for each column heading. The function returns the text of the column's cell for a row of `selections_table`."""


def rows_of(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Return the rows of a table, with None for missing values."""
    missing = table.isna().to_dict("records")
    for row, lacks in zip(table.to_dict("records"), missing, strict=True):
        yield {str(name): None if lacks[name] else value for name, value in row.items()}


def cells_of(cells: Cells, table: pd.DataFrame) -> list[list[str]]:
    """Return the texts of a table, row by row. Args: table: from `selections_table`."""
    return [[cell(row) for cell in cells.values()] for row in rows_of(table)]


def downsampled(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `selections_table` with downsampling, or with a position in `downsampling_list` that a score has chosen."""
    return table[table["downsampling"].notna() | table["downsampling_turn"].notna()]


def percent(share: float | None) -> str:
    """Format a share.

    >>> percent(0.1234), percent(None)
    ('12.3%', '–')
    """
    return "–" if share is None else f"{share:.1%}"


def shares_text(*shares: float | None) -> str:
    """Join the known shares of a class.

    >>> shares_text(0.5, 0.25, None)
    '50.0% → 25.0%'
    """
    return " → ".join(percent(share) for share in shares if share is not None) or "–"


def _number(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "–" if row[name] is None else f"{row[name]:,}"


def _seconds(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "–" if row[name] is None else f"{row[name]:.2f}"


def _days(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "–" if row[name] is None else f"{row[name] / 86_400:.1f} d"


def _values(*names: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that joins the named numbers of a row. If all numbers have the same text, the text appears once."""

    def text(row: Mapping[str, Any]) -> str:
        values = [f"{row[name]:.3g}" for name in names if row[name] is not None]
        return " / ".join(dict.fromkeys(values) if len(set(values)) == 1 else values) or "–"

    return text


def _policy(row: Mapping[str, Any]) -> str:
    """Format the downsampling strategy. If a score has chosen the strategy, add the strategy's position in the list and the score."""
    name, turn, score = row["downsampling"] or "–", row["downsampling_turn"], row["downsampling_score"]
    if turn is None:
        return str(name)
    return f"{name} (turn {turn}, {'no score' if score is None else f'score {score:.4g}'})"


def _kept(row: Mapping[str, Any]) -> str:
    candidates = row["downsampling_candidates"]
    return percent(row["downsampling_chosen"] / candidates if candidates else None)


def _effective(row: Mapping[str, Any]) -> str:
    effective, chosen = row["downsampling_effective"], row["downsampling_chosen"]
    return "–" if effective is None or not chosen else f"{effective:,.0f} ({percent(effective / chosen)})"


def selection_notes(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each choice that is probably not intended. Args: table: from `selections_table`."""
    rows, found = list(rows_of(table)), []
    same = [str(row["trigger_id"]) for row in rows if row["num_chosen"] and row["chosen_before"] == 1]
    if same:
        found.append(
            f"Triggers that chose only samples of the previous trigger: {', '.join(same)}. Either there were no new samples, or the buffer is full: "
            f"{GDUMB_FULL}."
        )
    if any(row["downsampling"] == "RHOLoss" and row["downsampling_mode"] == "sample_then_batch" for row in rows):
        found.append(f"RHOLoss with sample_then_batch: {RHO_LOSS_FIRST}.")
    return found


SELECTION_CELLS: Final[Cells] = {
    "trigger": lambda row: str(row["trigger_id"]),
    "candidates": _number("num_candidates"),
    "chosen": _number("num_chosen"),
    "chosen before": lambda row: percent(row["chosen_before"]),
    "age of chosen": _days("median_age"),
    "age of candidates": _days("median_age_candidates"),
    "weights": _values("least_weight", "median_weight", "most_weight"),
    "epochs": _seconds("effective_epochs"),
}
DOWNSAMPLING_CELLS: Final[Cells] = {
    "trigger": lambda row: str(row["trigger_id"]),
    "policy": _policy,
    "samples": _number("downsampling_candidates"),
    "trained on": _number("downsampling_chosen"),
    "kept": _kept,
    "weights": _values("downsampling_weight_5", "downsampling_weight_50", "downsampling_weight_95"),
    "largest weight": _values("downsampling_weight_largest"),
    "effective": _effective,
    "score s": _seconds("score_s"),
    "choose s": _seconds("choose_s"),
    "irreducible s": _seconds("irreducible_s"),
}
SELECTION_NOTE: Final = (
    "Candidates and chosen samples of triggers. Chosen before: share of the chosen samples that the previous trigger also "
    "chose. Ages: medians, relative to the newest candidate. Weights of the trigger set: minimum, median, maximum. Epochs: "
    "number of training samples divided by the size of the trigger set."
)
DOWNSAMPLING_NOTE: Final = (
    "Samples that trainings kept of their trigger sets, summed over all choices, so that a sample counts once for each "
    "epoch. Weights of the training samples: 5, 50 and 95 % quantiles, and the largest. Effective: the equivalent number of "
    "samples of equal weight, (Σw)² / Σw²; less than a third of the samples is a warning. Seconds: for scoring, for "
    "choosing, and for the irreducible-loss models of RHOLoss."
)
