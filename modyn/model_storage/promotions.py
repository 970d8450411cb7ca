"""Which version of a run is the one to use, and the audit trail of how it became that: who, when, why, and what was in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, update
from sqlalchemy.orm import Session

from modyn.db.engine import Database
from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError
from modyn.model_storage.client import CurrentVersions, GateVerdict, Promotion
from modyn.model_storage.tables import models, promotions
from modyn.records import RunId


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """A version that is to be promoted. reason, made_by, verdicts: for the trail."""

    model_id: int
    reason: str = ""
    made_by: str = ""
    verdicts: tuple[GateVerdict, ...] = ()
    compares: bool = False
    """Whether a verdict compares with the promoted version."""
    compared_id: int | None = None
    """That version; None: no other one was promoted."""


def rollback_target(trail: Iterable[Promotion], exists: Callable[[int], bool]) -> int | None:
    """Return the version that was promoted before the one that is; None: there is none that still exists.

    A rollback takes back the newest promotion that no rollback has taken back, so that a second one in a row goes one step further.

    Args: trail: of one run, in order.
    """
    stack: list[int] = []
    for entry in trail:
        if entry.action == "refuse":
            continue
        if not stack and entry.before_id is not None:  # promoted when there was no trail yet
            stack.append(entry.before_id)
        if entry.action == "promote":
            stack.append(entry.model_id)
        else:
            while stack and stack[-1] != entry.model_id:
                stack.pop()
    return next((model_id for model_id in reversed(stack[:-1]) if exists(model_id) and model_id != stack[-1]), None)


def says_more(trail: Sequence[Promotion], model_id: int, verdicts: tuple[GateVerdict, ...]) -> bool:
    """Return whether verdicts on a version that is promoted already are to be noted: not where a call is repeated because its answer was lost."""
    newest = next((entry for entry in reversed(trail) if entry.model_id == model_id), None)
    return bool(verdicts) and (newest is None or newest.verdicts != verdicts)


class ModelPromotions:
    """Promotions of all versions. Each is one transaction with its row in the trail. Safe to use from several threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def promote(self, request: PromotionRequest) -> None:
        """Mark a version as the one to use, and no other of the same run; imported ones belong to no run. Repeating it changes nothing, but verdicts
        that are new stand in the trail.

        Raises: NotFoundError. ConflictError: the verdicts compare, and another version than `compared_id` is promoted by now.
        """
        with self._database.session() as session:
            run_id, before = self._found(session, request.model_id)
            if request.compares and before not in (request.compared_id, request.model_id):
                compared, found = ("none" if each is None else f"model {each}" for each in (request.compared_id, before))
                raise ConflictError(
                    f"model {request.model_id} was compared with {compared}, and {found} is promoted by now; "
                    "promote it again, which compares with that"
                )
            _exchange(session, run_id, request, "promote")

    def refuse(self, request: PromotionRequest) -> None:
        """Note that an evaluation was against a promotion; nothing else changes. Raises: NotFoundError."""
        with self._database.session() as session:
            run_id, before = self._found(session, request.model_id)
            _note(session, run_id, request, "refuse", before)

    def _found(self, session: Session, model_id: int) -> tuple[RunId, int | None]:
        """The run of a version, whose versions are locked then, and its promoted version. Raises NotFoundError."""
        run_id = session.execute(select(models.c.run_id).where(models.c.model_id == model_id)).scalar_one_or_none()
        if run_id is None:
            raise NotFoundError(f"there is no model {model_id}; `modyn models ls` lists those that exist")
        if model_id not in _locked(session, run_id, model_id):
            raise NotFoundError(f"model {model_id} was deleted meanwhile; `modyn models ls` lists those that exist")
        return RunId(run_id), _promoted(session, run_id, model_id)

    def rollback(self, run_id: RunId, reason: str = "", by: str = "") -> int:
        """Mark the version again that was promoted before the one that is. Returns its id.

        Raises: InvalidArgumentError: no run is named. NotFoundError: the run has no models. ConflictError: none of its versions is promoted,
        or none was before that still exists.
        """
        if not run_id:
            raise InvalidArgumentError("name a run: imported models have no order to go back in; promote one of them")
        with self._database.session() as session:
            ids = _locked(session, run_id)
            if not ids:
                raise NotFoundError(f"run '{run_id}' has no models; `modyn models ls` lists those that exist")
            if _promoted(session, run_id, 0) is None:
                raise ConflictError(f"no model of run '{run_id}' is promoted; promote one with `modyn models promote {run_id}`")
            target = rollback_target(_trail(session, run_id), ids.__contains__)
            if target is None:
                raise ConflictError(
                    f"no model of run '{run_id}' that still exists was promoted before; promote one with `modyn models promote {run_id} MODEL`"
                )
            _exchange(session, run_id, PromotionRequest(target, reason, by), "rollback")
            return target

    def current(self, run_id: RunId) -> CurrentVersions:
        """Return the newest version of a run and the promoted one; of an unknown run, none."""
        newest = func.max(models.c.model_id)
        wanted = select(newest, newest.filter(models.c.promoted)).where(models.c.run_id == run_id)
        with self._database.session() as session:
            return CurrentVersions(*session.execute(wanted).one())

    def trail(self, run_id: RunId) -> list[Promotion]:
        """Return the promotions and rollbacks of a run, the oldest first."""
        with self._database.session() as session:
            return _trail(session, run_id)


def _locked(session: Session, run_id: str, model_id: int | None = None) -> set[int]:
    """The versions of a run (of an imported one, itself), locked in one order, so that two promotions at once end with one promoted version."""
    return set(
        session.scalars(
            select(models.c.model_id).where(_own(run_id, model_id or 0)).order_by(models.c.model_id).with_for_update()
        )
    )


def _own(run_id: str, model_id: int) -> ColumnElement[bool]:
    return models.c.run_id == run_id if run_id else models.c.model_id == model_id


def _promoted(session: Session, run_id: str, model_id: int) -> int | None:
    return session.scalars(select(models.c.model_id).where(_own(run_id, model_id), models.c.promoted)).first()


def _exchange(session: Session, run_id: RunId, request: PromotionRequest, action: str) -> None:
    model_id, own = request.model_id, _own(run_id, request.model_id)
    before = _promoted(session, run_id, model_id)
    if before == model_id:
        if says_more(_trail(session, run_id), model_id, request.verdicts):
            _note(session, run_id, request, action, before)
        return
    session.execute(update(models).where(own, models.c.promoted).values(promoted=False))
    session.execute(update(models).where(models.c.model_id == model_id).values(promoted=True))
    _note(session, run_id, request, action, before)


def _note(session: Session, run_id: RunId, request: PromotionRequest, action: str, before: int | None) -> None:
    row = {"run_id": run_id, "model_id": request.model_id, "action": action, "before_id": before, "reason": request.reason}
    verdicts = [asdict(verdict) for verdict in request.verdicts]
    session.execute(insert(promotions).values(**row, made_by=request.made_by, made_at=time.time(), verdicts=verdicts))


def _trail(session: Session, run_id: str) -> list[Promotion]:
    found = select(promotions).where(promotions.c.run_id == run_id).order_by(promotions.c.promotion_id)
    return [_entry(dict(row)) for row in session.execute(found).mappings()]


def _entry(row: dict[str, Any]) -> Promotion:
    del row["promotion_id"]
    return Promotion(**{**row, "verdicts": tuple(GateVerdict(**verdict) for verdict in row["verdicts"])})
