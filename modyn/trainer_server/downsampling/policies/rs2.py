"""Train on a new random part of the trigger set in each epoch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from modyn.records import Int64Array
from modyn.trainer_server.downsampling.policies.policy import Candidates, Choice, DownsamplingConfig, DownsamplingPolicy, Draw


class RS2Config(DownsamplingConfig):
    """Options of RS2."""

    with_replacement: bool = Field(
        False,
        description="draw each selection independently; false (needs sample_then_batch): go through a random order of all samples, so that each "
        "is chosen once before any is chosen again",
    )

    @model_validator(mode="after")
    def _walks_through_all(self) -> Self:
        if not (self.with_replacement or self.sample_then_batch):
            raise ValueError(
                "RS2 without replacement walks through a random order of the whole trigger set: set sample_then_batch: true, or "
                "with_replacement: true"
            )
        return self


class RS2(DownsamplingPolicy):
    """Repeated Sampling of Random Subsets: makes a new uniform choice at each selection, by default in each epoch, without a pass of the model
    (Okanovic and others: Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning, 2024, section 3). Chosen samples get no weights.

    With replacement, any selection can choose a sample again. Without replacement, a sample is chosen again only after all other samples. A choice
    has no duplicates.

    >>> nothing = Candidates(np.zeros((6, 0), np.float32), np.zeros(6, np.int64), np.arange(6))
    >>> policy = RS2(RS2Config(ratio=50, sample_then_batch=True))
    >>> [policy.choose(nothing, 3, Draw(seed=7, trigger_id=0, number=number)).positions.tolist() for number in range(2)]
    [[1, 3, 5], [0, 2, 4]]
    """

    Config: ClassVar[type[DownsamplingConfig]] = RS2Config
    needs_pass = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._newest: tuple[Any, int, Int64Array] | None = None
        """The newest random order: its inputs, its number and its samples. The next choice begins within this order."""

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Draw a new choice, or return the next samples in the sequence of random orders."""
        if self.config.with_replacement:
            drawn = draw.generator().choice(len(candidates), size, replace=False, shuffle=False)
        else:
            cycle, begin = divmod(draw.number * size, len(candidates))
            drawn = self._order(draw, cycle, len(candidates), size)[begin : begin + size]
            if len(drawn) < size:
                drawn = np.concatenate([drawn, self._order(draw, cycle + 1, len(candidates), size)[: size - len(drawn)]])
        return Choice(np.sort(drawn).astype(np.int64, copy=False))

    def _order(self, draw: Draw, cycle: int, num_candidates: int, size: int) -> Int64Array:
        """Return random order number `cycle`. If a choice consists of the end of the previous order and the beginning of this order, this order
        begins with samples that are not in the choice yet."""
        made_from = (draw.seed, draw.trigger_id, num_candidates, size)
        if self._newest is None or self._newest[0] != made_from or self._newest[1] > cycle:
            # After size / gcd(num_candidates, size) orders, a choice ends at the end of an order. The next order then depends on no other order.
            start = cycle - cycle % (size // math.gcd(num_candidates, size))
            self._newest = made_from, start, _permutation(draw, start, num_candidates)
        _, newest, order = self._newest
        for number in range(newest + 1, cycle + 1):
            before, order = order, _permutation(draw, number, num_candidates)
            if num_begun := number * num_candidates % size:
                held = np.zeros(num_candidates, np.bool_)
                held[before[-num_begun:]] = True
                first = np.flatnonzero(~held[order])[: size - num_begun]
                order = np.concatenate([order[first], np.delete(order, first)])
        self._newest = made_from, cycle, order
        return order


def _permutation(draw: Draw, number: int, num_candidates: int) -> Int64Array:
    return replace(draw, number=number, part=1).generator().permutation(num_candidates)
