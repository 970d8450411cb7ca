"""Promotion of a run's versions, and the audit trail: who promoted a version, when, why, and which version was replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from modyn.db.engine import Database
from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError
from modyn.model_storage.client import CurrentVersions, GateVerdict, Promotion
from modyn.model_storage.tables import models, promotions
from modyn.records import RunId


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """Request to promote a version. reason, made_by, verdicts: recorded in the audit trail."""

    model_id: int
    reason: str = ""
    made_by: str = ""
    verdicts: tuple[GateVerdict, ...] = ()
    compares: bool = False
    """Whether a verdict compares with the promoted version."""
    compared_id: int | None = None
    """Id of the promoted version that the verdicts compare with; None: no other version was promoted."""


def rollback_target(trail: Iterable[Promotion], exists: Callable[[int], bool]) -> int | None:
    """Return the version that was promoted before the current version; None if no such version exists. A rollback undoes the newest promotion that is
    not yet undone, so a second rollback goes one step further back.

    Args: trail: entries of one run, in order.
    """
    stack: list[int] = []
    for entry in trail:
        if entry.action == "refuse":
            continue
        if not stack and entry.before_id is not None:  # this version was promoted before there was a trail
            stack.append(entry.before_id)
        if entry.action == "promote":
            stack.append(entry.model_id)
        else:
            while stack and stack[-1] != entry.model_id:
                stack.pop()
    return next((model_id for model_id in reversed(stack[:-1]) if exists(model_id) and model_id != stack[-1]), None)


def says_more(trail: Sequence[Promotion], model_id: int, verdicts: tuple[GateVerdict, ...]) -> bool:
    """Return whether to record verdicts on a version that is already promoted. Verdicts are not recorded if the call only repeats an earlier call,
    because the response was lost.
    """
    newest = next((entry for entry in reversed(trail) if entry.model_id == model_id), None)
    return bool(verdicts) and (newest is None or newest.verdicts != verdicts)


class ModelPromotions:
    """Promotions of all versions. A promotion and its row in the trail are written in one transaction. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def promote(self, request: PromotionRequest) -> None:
        """Mark a version as the one to use, and unmark the other versions of the same run. Imported versions belong to no run. A repeated call only
        adds new verdicts to the trail.

        Raises: NotFoundError. ConflictError: the verdicts compare with `compared_id`, but another version is promoted now.
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
        """Record that an evaluation refused a promotion. Nothing else changes. Raises: NotFoundError."""
        with self._database.session() as session:
            run_id, before = self._found(session, request.model_id)
            _note(session, run_id, request, "refuse", before)

    def _found(self, session: Session, model_id: int) -> tuple[RunId, int | None]:
        """Return the run of a version and the run's promoted version, and lock the run's versions. Raises NotFoundError."""
        run_id = session.execute(select(models.c.run_id).where(models.c.model_id == model_id)).scalar_one_or_none()
        if run_id is None:
            raise NotFoundError(f"there is no model {model_id}; `modyn models ls` lists those that exist")
        if model_id not in _lock_versions(session, run_id, model_id):
            raise NotFoundError(f"model {model_id} was deleted meanwhile; `modyn models ls` lists those that exist")
        return RunId(run_id), _promoted(session, run_id, model_id)

    def rollback(self, run_id: RunId, reason: str = "", by: str = "") -> int:
        """Promote the previously promoted version again. Returns its id.

        Raises: InvalidArgumentError: no run is named. NotFoundError: the run has no models. ConflictError: no version is promoted, or no earlier
        promoted version exists.
        """
        if not run_id:
            raise InvalidArgumentError("name a run: imported models have no order to go back in; promote one of them")
        with self._database.session() as session:
            ids = _lock_versions(session, run_id)
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
        """Return the newest and the promoted version of a run. Both are None for an unknown run."""
        newest = func.max(models.c.model_id)
        wanted = select(newest, newest.filter(models.c.promoted)).where(models.c.run_id == run_id)
        with self._database.session() as session:
            newest_id, promoted_id = session.execute(wanted).one()
            named = or_(promotions.c.model_id == newest_id, promotions.c.before_id == newest_id)
            in_trail = session.scalar(select(exists().where(promotions.c.run_id == run_id, named)))
            return CurrentVersions(newest_id, promoted_id, bool(in_trail))

    def trail(self, run_id: RunId) -> list[Promotion]:
        """Return the promotions and rollbacks of a run, the oldest first."""
        with self._database.session() as session:
            return _trail(session, run_id)


def _lock_versions(session: Session, run_id: str, model_id: int | None = None) -> set[int]:
    """Lock and return the versions of a run. For an imported version, only this version is locked. Rows are locked in a fixed order, so that two
    concurrent promotions end with one promoted version.
    """
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
