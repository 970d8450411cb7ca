"""Places of requests: bounded, shared between datasets, and not for those who do not read."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from modyn.errors import UnavailableError
from modyn.storage.flight.places import Places


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def places(clock: Clock) -> Places:
    return Places(4, 5.0, "busy", clock)


def test_places_are_bounded_and_given_back(places: Places) -> None:
    for _ in range(3):
        with ExitStack() as held:
            for name in "abcd":
                held.enter_context(places.admitted(name))
            with pytest.raises(UnavailableError, match="busy"), places.admitted("e"):
                pass


def test_one_dataset_does_not_take_all(places: Places) -> None:
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(places.admitted("a"))
        with pytest.raises(UnavailableError, match="busy"), places.admitted("a"):
            pass
        with places.admitted("b"):
            pass


def test_a_request_that_is_not_read_loses_its_place_to_another(places: Places, clock: Clock) -> None:
    with ExitStack() as held:
        idle, *_ = [held.enter_context(places.admitted(name)) for name in "abcd"]
        sending = held.enter_context(ExitStack())
        sending.enter_context(places.sending(idle))
        clock.now += 4.9
        with pytest.raises(UnavailableError), places.admitted("e"):
            pass
        clock.now += 0.2
        with places.admitted("e"):
            with pytest.raises(UnavailableError), places.admitted("f"):
                pass
            # Its client reads again: it needs a place, and there is none.
            with pytest.raises(UnavailableError, match="busy"):
                sending.close()


def test_one_that_lost_its_place_takes_another_when_it_goes_on(places: Places, clock: Clock) -> None:
    with ExitStack() as held:
        idle, *_ = [held.enter_context(places.admitted(name)) for name in "abcd"]
        with places.sending(idle):
            clock.now += 6
            with places.admitted("e"):
                pass
        with pytest.raises(UnavailableError), places.admitted("f"):
            pass
        with places.sending(idle):
            clock.now += 6
        with pytest.raises(UnavailableError), places.admitted("f"):  # It was idle, and works now.
            pass


def test_those_that_lost_their_place_are_bounded_as_well(clock: Clock) -> None:
    places = Places(2, 5.0, "busy", clock)
    with ExitStack() as held:
        for name in "abcd":
            held.enter_context(places.sending(held.enter_context(places.admitted(name))))
            clock.now += 6
        with pytest.raises(UnavailableError), places.admitted("e"):
            pass
        held.pop_all()
