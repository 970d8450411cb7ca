"""The steps of proactive training as texts: what triggers are, and what was tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEASURES = ("error", "loss")


def kind_of(detail: Mapping[str, Any]) -> str:
    """What a trigger fired for. Args: detail: as `EventKind.TRIGGER_FIRED` documents.

    >>> kind_of({"online": True}), kind_of({})
    ('steps', 'training')
    """
    return "steps" if detail.get("online") else "training"


def tested_text(detail: Mapping[str, Any]) -> str:
    """Format what a training of steps tested; empty: it tested nothing. Args: detail: of its end, as `EventKind.STEP` documents.

    >>> tested_text({"tested": 1200, "prequential_error": 0.25, "rollbacks": 1})
    'prequential error 0.2500 over 1,200 samples, rolled back once'
    """
    found = [f"prequential {name} {detail[f'prequential_{name}']:.4f}" for name in MEASURES if f"prequential_{name}" in detail]
    if not found:
        return ""
    rollbacks = {0: "", 1: ", rolled back once"}.get(number := detail.get("rollbacks", 0), f", rolled back {number} times")
    return f"{found[0]} over {detail['tested']:,} samples{rollbacks}"
