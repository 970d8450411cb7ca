"""Tables of triggers' choices as text, for the report and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pandas as pd

from modyn.analysis.selections import SelectionRow
from modyn.config.selection_parts import GDUMB_FULL, RHO_LOSS_FIRST

Cells = Mapping[str, Callable[[SelectionRow], str]]
"""A function for each column heading. The function returns the text of the column's cell."""


def rows_of(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Return the rows of a table, with None for missing values."""
    missing = table.isna().to_dict("records")
    for row, lacks in zip(table.to_dict("records"), missing, strict=True):
        yield {str(name): None if lacks[name] else value for name, value in row.items()}


def cells_of(cells: Cells, table: pd.DataFrame) -> list[list[str]]:
    """Return the texts of a table, row by row. Args: table: from `selections_table`."""
    return [[cell(SelectionRow(**row)) for cell in cells.values()] for row in rows_of(table)]


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


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _days(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds / 86_400:.1f} d"


def _values(*values: float | None) -> str:
    """Join the known numbers. If all numbers have the same text, the text appears once."""
    texts = [f"{value:.3g}" for value in values if value is not None]
    return " / ".join(texts if len(set(texts)) > 1 else texts[:1]) or "–"


def _policy(row: SelectionRow) -> str:
    """Format the downsampling strategy. If a score has chosen the strategy, add the strategy's position in the list and the score."""
    name, turn, score = row.downsampling or "–", row.downsampling_turn, row.downsampling_score
    return name if turn is None else f"{name} (turn {turn}, {'no score' if score is None else f'score {score:.4g}'})"


def _kept(row: SelectionRow) -> str:
    candidates, chosen = row.downsampling_candidates, row.downsampling_chosen
    return percent(chosen / candidates if candidates and chosen is not None else None)


def _effective(row: SelectionRow) -> str:
    effective, chosen = row.downsampling_effective, row.downsampling_chosen
    return "–" if effective is None or not chosen else f"{effective:,.0f} ({percent(effective / chosen)})"


def selection_notes(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each choice that is probably not intended. Args: table: from `selections_table`."""
    rows, found = [SelectionRow(**row) for row in rows_of(table)], []
    same = [str(row.trigger_id) for row in rows if row.num_chosen and row.chosen_before == 1]
    if same:
        found.append(
            f"Triggers that chose only samples of the previous trigger: {', '.join(same)}. Either there were no new samples, or the buffer is full: "
            f"{GDUMB_FULL}."
        )
    if any(row.downsampling == "RHOLoss" and row.downsampling_mode == "sample_then_batch" for row in rows):
        found.append(f"RHOLoss with sample_then_batch: {RHO_LOSS_FIRST}.")
    return found


SELECTION_CELLS: Final[Cells] = {
    "trigger": lambda row: str(row.trigger_id),
    "candidates": lambda row: _number(row.num_candidates),
    "chosen": lambda row: _number(row.num_chosen),
    "chosen before": lambda row: percent(row.chosen_before),
    "age of chosen": lambda row: _days(row.median_age),
    "age of candidates": lambda row: _days(row.median_age_candidates),
    "weights": lambda row: _values(row.least_weight, row.median_weight, row.most_weight),
    "epochs": lambda row: _seconds(row.effective_epochs),
}
DOWNSAMPLING_CELLS: Final[Cells] = {
    "trigger": lambda row: str(row.trigger_id),
    "policy": _policy,
    "samples": lambda row: _number(row.downsampling_candidates),
    "trained on": lambda row: _number(row.downsampling_chosen),
    "kept": _kept,
    "weights": lambda row: _values(row.downsampling_weight_5, row.downsampling_weight_50, row.downsampling_weight_95),
    "largest weight": lambda row: _values(row.downsampling_weight_largest),
    "effective": _effective,
    "score s": lambda row: _seconds(row.score_s),
    "choose s": lambda row: _seconds(row.choose_s),
    "irreducible s": lambda row: _seconds(row.irreducible_s),
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
