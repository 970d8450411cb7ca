"""Run a simulation: pass the stream through all policies, and report progress. Other packages import this module."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from modyn.config.label_delay import label_delay
from modyn.config.preprocessing import with_columns
from modyn.supervisor.simulation.engine import SimulatedPolicy, SimulatedTrigger, Simulation
from modyn.supervisor.simulation.policy_checks import check_policies
from modyn.supervisor.simulation.policy_file import PolicyFile, load_policies
from modyn.supervisor.simulation.stream import (
    SimulatedStream,
    SimulationClients,
    SimulationOptions,
    open_stream,
    reference_columns,
)
from modyn.supervisor.simulation.training_forecast import check_amount, training_seconds
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.supervisor.triggers.measures.label_clock import LabelClock
from modyn.supervisor.triggers.measures.shared_evidence import SharedEvidence
from modyn.supervisor.triggers.measures.training_seconds import TrainingSeconds

__all__ = [
    "PolicyFile",
    "SimulatedPolicy",
    "SimulatedTrigger",
    "Simulation",
    "SimulationClients",
    "SimulationOptions",
    "SimulationProgress",
    "TrainingSeconds",
    "check_amount",
    "check_policies",
    "load_policies",
    "next_piece",
    "run_simulation",
    "training_seconds",
]

_PIECE_S: Final = 0.5
"""Target duration in seconds of a piece, a slice of a batch that all policies process together."""
_FIRST_PIECE: Final = 64
"""Number of samples of the first piece. The first piece is small, so that users see the first progress soon even if checks are slow."""
_LARGEST_PIECE: Final = 2**20
"""Largest number of samples in a piece."""


@dataclass(frozen=True, slots=True)
class SimulationProgress:
    """Progress of a simulation."""

    num_samples: int
    """Number of samples on which all policies have decided."""
    total_samples: int
    seconds: float
    """Seconds since the start."""
    num_policies: int
    num_asks: int = 0
    """Number of requests to services about the current piece of the stream; 0 between two pieces."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end at the speed so far, None while the speed is not known."""
        return self.seconds / self.num_samples * (self.total_samples - self.num_samples) if self.num_samples else None


def run_simulation(
    clients: SimulationClients,
    policies: Mapping[str, Mapping[str, Any]],
    options: SimulationOptions,
    progress: Callable[[SimulationProgress], None] = lambda _: None,
) -> Simulation:
    """Simulate policies on a stream; return the simulation with the triggers of each policy.

    Args: policies: `trigger` sections by name. progress: called a few times a second; an error of this function ends the simulation. Raises: the
    errors of `open_stream` and of the policies.
    """
    options.check()
    columns = reference_columns(clients, options)
    delays = {label_delay({"trigger": section}) for section in policies.values()} - {0}
    with closing(open_stream(clients, options, delays)) as stream:
        shared = SharedEvidence(stream.evidence)
        context = TriggerContext(stream.seed, label_delay=stream.label_delay)
        labels = LabelClock(stream.label_delay, stream.read) if stream.label_delay else None
        built = {
            name: build_trigger(with_columns({**columns, "trigger": section})["trigger"], context)
            for name, section in policies.items()
        }
        simulated = {name: SimulatedPolicy(policy, stream.forecast, shared) for name, policy in built.items()}
        simulation = Simulation(simulated, shared, stream.forecast.note, labels)
        _pass_stream(simulation, stream, shared, progress)
    return simulation


def next_piece(size: int, seconds: float) -> int:
    """Return the size of the next piece, after a piece of `size` samples took `seconds`. The sizes of the pieces change no decision."""
    if seconds < _PIECE_S / 2:
        return min(2 * size, _LARGEST_PIECE)
    return size if seconds < 2 * _PIECE_S else max(1, size // 2)


def _pass_stream(
    simulation: Simulation,
    stream: SimulatedStream,
    shared: SharedEvidence,
    progress: Callable[[SimulationProgress], None],
) -> None:
    """Pass all samples of the stream through all policies, in pieces."""
    began, size, num_asks = time.monotonic(), _FIRST_PIECE, 0

    def report() -> None:
        seconds = time.monotonic() - began
        progress(SimulationProgress(simulation.position, stream.total, seconds, len(simulation.policies), num_asks))

    def report_asks() -> None:
        nonlocal num_asks
        num_asks += 1
        report()

    report()
    for batch in stream.batches():
        at = 0
        while at < len(batch):
            piece, piece_began = batch.slice(at, at + size), time.monotonic()
            simulation.process(piece, report_asks)
            # Answers that no policy has requested lately are dropped, so that memory stays bounded.
            shared.forget()
            at, num_asks = at + len(piece), 0
            # Pieces grow or shrink so that progress is reported a few times a second.
            size = next_piece(size, time.monotonic() - piece_began)
            report()
