"""Carry a simulation out: pass the stream through all policies, report progress, and save where it stands. Other rooms import this module."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from modyn.atomic_write import make_folder, write_atomically
from modyn.config.label_delay import label_delay
from modyn.errors import ConflictError, CorruptStateError, UnavailableError
from modyn.json_codec import from_json, json_digest, to_json
from modyn.supervisor.policy_checks import check_policies
from modyn.supervisor.policy_file import PolicyFile, load_policies
from modyn.supervisor.simulate import SimulatedPolicy, SimulatedTrigger, Simulation
from modyn.supervisor.simulated_stream import SimulatedStream, SimulationClients, SimulationOptions, open_stream
from modyn.supervisor.training_forecast import check_amount, training_seconds
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.supervisor.triggers.label_clock import LabelClock
from modyn.supervisor.triggers.shared_evidence import SharedEvidence
from modyn.supervisor.triggers.training_seconds import TrainingSeconds

__all__ = [
    "STATE_FILE",
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

STATE_FILE: Final = "simulation.json"
_PIECE_S: Final = 0.5
"""Samples are passed on in pieces that take about so long: where policies look at data, few at once."""
_FIRST_PIECE: Final = 64
"""So that the first progress is shown soon, however slow the checks are."""
_LARGEST_PIECE: Final = 2**20
_SAVE_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class SimulationProgress:
    """How far a simulation is."""

    num_samples: int
    """That all policies have decided on."""
    total_samples: int
    resumed_at: int
    """Samples that had been decided on when this call began."""
    seconds: float
    """Since then."""
    num_policies: int
    asks_on: int = 0
    """0: between two pieces of the stream. Else how often services were asked for policies on the samples of this piece so far."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end, if it goes on as before; None: not known yet."""
        done = self.num_samples - self.resumed_at
        return self.seconds / done * (self.total_samples - self.num_samples) if done else None


class SavedSimulation:
    """Where a simulation stands, in a file: complete, or as it was saved before."""

    def __init__(self, folder: Path, identity: str) -> None:
        """Args: identity: of policies and options: a simulation of others is refused.

        Raises: ConflictError: the folder holds another simulation. CorruptStateError: the file cannot be read. UnavailableError: it cannot be
        written.
        """
        self._path = folder / STATE_FILE
        self._identity = identity
        try:
            make_folder(folder.absolute())
            self._saved = _checked(from_json(self._path.read_bytes())) if self._path.exists() else None
        except OSError as error:
            raise UnavailableError(f"cannot use {folder}: {error.strerror or error}; choose another folder") from error
        except ValueError as error:
            raise CorruptStateError(f"{self._path} is not readable: {error}; remove it to begin anew") from error
        if self._saved is not None and self._saved["identity"] != identity:
            raise ConflictError(
                f"{self._path} is of a simulation of other policies, data or options; choose another folder, or remove the file to begin anew"
            )

    @property
    def bounds(self) -> Mapping[str, Any] | None:
        """Of the stream; None: nothing was saved."""
        return None if self._saved is None else self._saved["bounds"]

    def load(self, simulation: Simulation) -> None:
        """Bring a simulation to where the saved one stood, if there is one. Raises: CorruptStateError."""
        if self._saved is not None:
            simulation.load_state(self._saved["state"])

    def save(self, bounds: Mapping[str, Any], simulation: Simulation) -> None:
        """Replace the file. Raises: UnavailableError."""
        content = {"identity": self._identity, "bounds": dict(bounds), "state": simulation.state()}
        write_atomically(self._path, [to_json({"digest": json_digest(content), "content": content}).encode()])


def _checked(saved: Any) -> dict[str, Any]:
    """What was saved. Raises ValueError: something else stands there."""
    content = saved.get("content") if isinstance(saved, dict) else None
    if not isinstance(content, dict) or saved.get("digest") != json_digest(content):
        raise ValueError("its content does not match its checksum")
    return content


def run_simulation(
    clients: SimulationClients,
    policies: Mapping[str, Mapping[str, Any]],
    options: SimulationOptions,
    folder: Path | None = None,
    progress: Callable[[SimulationProgress], None] = lambda _: None,
) -> Simulation:
    """Simulate policies on a stream, and return where each of them fired.

    Args: policies: `trigger` sections by name. folder: where the simulation is saved every few seconds; one that was cut off goes on. progress:
        called a few times a second. What it raises ends the simulation, which is saved as it is then, between two pieces of the stream
        (`asks_on` 0); raised within a piece, the piece is made again.
    Raises: what `open_stream`, the policies and `SavedSimulation` raise.
    """
    options.check()
    saved = None if folder is None else SavedSimulation(folder, json_digest([policies, asdict(options)]))
    delays = {label_delay({"trigger": section}) for section in policies.values()} - {0}
    with closing(open_stream(clients, options, None if saved is None else saved.bounds, delays)) as stream:
        return _simulate(policies, stream, saved, progress)


def _simulate(
    policies: Mapping[str, Mapping[str, Any]],
    stream: SimulatedStream,
    saved: SavedSimulation | None,
    progress: Callable[[SimulationProgress], None],
) -> Simulation:
    shared = SharedEvidence(stream.evidence)
    context = TriggerContext(stream.seed, label_delay=stream.label_delay)
    labels = LabelClock(stream.label_delay, stream.read) if stream.label_delay else None
    simulation = Simulation(
        {name: SimulatedPolicy(build_trigger(section, context), stream.forecast, shared) for name, section in policies.items()},
        shared,
        stream.forecast.note,
        labels,
    )
    if saved is not None:
        saved.load(simulation)
        stream.restore_labels(simulation)
    passage = _Passage(simulation, stream, shared, saved, progress)
    passage.run()
    return simulation


def next_piece(size: int, seconds: float) -> int:
    """Return how many samples to pass on next, after a piece of `size` took so long. How the stream is cut changes no decision."""
    if seconds < _PIECE_S / 2:
        return min(2 * size, _LARGEST_PIECE)
    return size if seconds < 2 * _PIECE_S else max(1, size // 2)


class _Passage:
    """One pass of the stream through all policies, from where they stand."""

    def __init__(
        self,
        simulation: Simulation,
        stream: SimulatedStream,
        shared: SharedEvidence,
        saved: SavedSimulation | None,
        progress: Callable[[SimulationProgress], None],
    ) -> None:
        self._simulation = simulation
        self._stream = stream
        self._shared = shared
        self._saved = saved
        self._progress = progress
        self._began = time.monotonic()
        self._resumed_at = simulation.position
        self._piece = _FIRST_PIECE
        self._asks_on = 0
        self._next_save = self._began + _SAVE_EVERY_S

    def run(self) -> None:
        """Pass all samples."""
        self._save()  # What is stored for this simulation elsewhere is found again after a crash.
        self._report()
        for batch in self._stream.batches(self._simulation):
            at = 0
            while at < len(batch):
                piece = batch.slice(at, at + self._piece)
                at += len(piece)
                began = time.monotonic()
                self._asks_on = 0
                self._simulation.process(piece, self._report_within)
                self._shared.forget()
                self._piece = next_piece(self._piece, time.monotonic() - began)
                if time.monotonic() >= self._next_save:
                    self._save()
                self._report()
        self._save()

    def _save(self) -> None:
        if self._saved is not None:
            began = time.monotonic()
            self._saved.save(self._stream.bounds, self._simulation)
            now = time.monotonic()
            self._next_save = now + max(_SAVE_EVERY_S, 20 * (now - began))

    def _report_within(self) -> None:
        self._asks_on += 1
        self._progress(self._now(self._asks_on))

    def _now(self, asks_on: int = 0) -> SimulationProgress:
        done, total, seconds = self._simulation.position, self._stream.total, time.monotonic() - self._began
        return SimulationProgress(done, total, self._resumed_at, seconds, len(self._simulation.policies), asks_on)

    def _report(self) -> None:
        try:
            self._progress(self._now())
        except BaseException:  # Whoever ends it here ends it between two pieces.
            self._save()
            raise
