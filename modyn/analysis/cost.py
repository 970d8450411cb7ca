"""The cost of a pipeline: triggers, samples, seconds (SIGMOD'25, section 3.1, "Cost trade-off")."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from modyn.analysis.results import STAGES, RunResults


@dataclass(frozen=True, slots=True)
class Cost:
    """Three measures of cost. The number of triggers compares pipelines with one selection policy, the number of samples all policies;
    seconds include everything but need an otherwise idle machine."""

    num_triggers: int
    num_samples: int
    """Samples trained on, summed over the triggers; further epochs do not count."""
    wall_s: float
    """From submission to the end of the run, pauses between stop and resume included."""
    by_stage_s: dict[str, float]
    """Seconds of work by stage, summed over the triggers. Evaluation overlaps the next training: their sum may exceed `wall_s`."""


def cost(results: RunResults) -> Cost:
    """Return the cost of a run so far."""
    triggers = results.triggers
    end = results.run.finished_at
    started = results.run.submitted_at
    last = triggers["finished_at"].max() if len(triggers) else started
    by_stage = {stage: float(triggers[f"{stage}_s"].fillna(0.0).sum()) for stage in STAGES}
    return Cost(
        num_triggers=int(triggers["model_id"].notna().sum()),
        num_samples=int(triggers.loc[triggers["model_id"].notna(), "num_keys"].sum()),
        wall_s=float((end if end is not None else last if pd.notna(last) else started) - started),
        by_stage_s=by_stage,
    )
