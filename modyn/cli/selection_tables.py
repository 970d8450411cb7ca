"""What `modyn show --selections` prints: what the triggers of a run chose from, and what they chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from modyn.cli.output import number, print_table
from modyn.cli.run_tables import SHOWN

if TYPE_CHECKING:
    import pandas as pd

    from modyn.client import Client


def print_selections(client: Client, run_id: str) -> None:
    """Print the newest triggers of a run, and their class shares where there are few classes."""
    from modyn.analysis.selections import MOST_CLASSES

    table = client.selections(run_id).tail(SHOWN)
    print_table(
        ["trigger", "candidates", "chosen", "chosen before", "median age", "of candidates", "weights", "downsampling", "kept", "score s", "epochs"],
        [
            [
                number(t["trigger_id"]), t["num_candidates"], t["num_chosen"], _percent(t["chosen_before"]), _days(t["median_age"]),
                _days(t["median_age_candidates"]), _range(t["least_weight"], t["most_weight"]), _strategy(t), _percent(_kept(t)),
                t["score_s"], t["effective_epochs"],
            ]
            for t in _rows(table)
        ],
        title="Selections",
        empty="no trigger has a trigger set yet",
    )  # fmt: skip
    shares = client.class_shares(run_id)
    labels = sorted(shares["label"].unique())
    if not 0 < len(labels) <= MOST_CLASSES:
        return
    cells = {(t["trigger_id"], t["label"]): t for t in _rows(shares)}
    print_table(
        ["trigger", *(f"class {label}" for label in labels)],
        [
            [number(trigger), *(_shares(cells.get((trigger, label), {})) for label in labels)]
            for trigger in table["trigger_id"].to_list()
        ],
        title="Class shares: among the candidates → chosen → trained on after downsampling",
    )


def _rows(table: pd.DataFrame) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, None for what is missing."""
    missing = table.isna().to_dict("records")
    for row, lacks in zip(table.to_dict("records"), missing, strict=True):
        yield {str(name): None if lacks[name] else value for name, value in row.items()}


def _kept(row: Mapping[str, Any]) -> float | None:
    candidates = row["downsampling_candidates"]
    return row["downsampling_chosen"] / candidates if candidates else None


def _strategy(row: Mapping[str, Any]) -> str:
    """The strategy of downsampling; where a score decides, with its position in the list and the score."""
    name, turn, score = row["downsampling"] or "–", row["downsampling_turn"], row["downsampling_score"]
    if turn is None:
        return name
    return f"{name} (turn {turn}, {'no score' if score is None else f'score {score:.4g}'})"


def _shares(cell: Mapping[str, Any]) -> str:
    known = [cell.get(name) for name in ("candidates_share", "chosen_share", "trained_share")]
    return " → ".join(_percent(share) for share in known if share is not None) or "–"


def _range(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return "–"
    return f"{least:.3g}" if least == most else f"{least:.3g}–{most:.3g}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _days(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds / 86_400:.1f} d"
