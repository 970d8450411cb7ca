"""Permits of requests: bounded, shared between datasets, and not for those who do not read."""

from __future__ import annotations

from contextlib import ExitStack
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import UnavailableError
from modyn.storage.flight.admission import SHARE, AdmissionControl


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
def admission(clock: Clock) -> AdmissionControl:
    return AdmissionControl(4, 5.0, "busy", clock)


def test_permits_are_bounded_and_given_back(admission: AdmissionControl) -> None:
    for _ in range(3):
        with ExitStack() as held:
            for name in "abcd":
                held.enter_context(admission.admit(name))
            with pytest.raises(UnavailableError, match="busy"), admission.admit("e"):
                pass


def test_one_dataset_does_not_take_all(admission: AdmissionControl) -> None:
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(admission.admit("a"))
        with pytest.raises(UnavailableError, match="busy"), admission.admit("a"):
            pass
        with admission.admit("b"):
            pass


def test_a_request_that_is_not_read_loses_its_permit_to_another(admission: AdmissionControl, clock: Clock) -> None:
    with ExitStack() as held:
        idle, *_ = [held.enter_context(admission.admit(name)) for name in "abcd"]
        sending = held.enter_context(ExitStack())
        sending.enter_context(admission.awaiting_client(idle))
        clock.now += 4.9
        with pytest.raises(UnavailableError), admission.admit("e"):
            pass
        clock.now += 0.2
        with admission.admit("e"):
            with pytest.raises(UnavailableError), admission.admit("f"):
                pass
            # Its client reads again: it needs a permit, and there is none.
            with pytest.raises(UnavailableError, match="busy"):
                sending.close()


def test_one_that_lost_its_permit_takes_another_when_it_continues(admission: AdmissionControl, clock: Clock) -> None:
    with ExitStack() as held:
        idle, *_ = [held.enter_context(admission.admit(name)) for name in "abcd"]
        with admission.awaiting_client(idle):
            clock.now += 6
            with admission.admit("e"):
                pass
        with pytest.raises(UnavailableError), admission.admit("f"):
            pass
        with admission.awaiting_client(idle):
            clock.now += 6
        with pytest.raises(UnavailableError), admission.admit("f"):  # It was idle, and works now.
            pass


def test_those_that_lost_their_permit_are_bounded_as_well(clock: Clock) -> None:
    admission = AdmissionControl(2, 5.0, "busy", clock)
    with ExitStack() as held:
        for name in "abcd":
            held.enter_context(admission.awaiting_client(held.enter_context(admission.admit(name))))
            clock.now += 6
        with pytest.raises(UnavailableError), admission.admit("e"):
            pass
        held.pop_all()


def test_a_client_with_many_requests_leaves_a_permit_to_one_that_waits(admission: AdmissionControl) -> None:
    """The client has all permits while no other client requests one."""
    greedy = [ExitStack() for _ in range(4)]
    for number, one in enumerate(greedy):
        one.enter_context(admission.admit(f"d{number}", "greedy"))
    with pytest.raises(UnavailableError, match="busy"), admission.admit("d", "modest"):
        pass
    with greedy[0]:
        pass
    with pytest.raises(UnavailableError, match="busy"), admission.admit("d0", "greedy"):
        pass
    with admission.admit("d", "modest"), pytest.raises(UnavailableError, match="busy"), admission.admit("d0", "greedy"):
        pass
    with admission.admit("d0", "greedy"):
        pass
    for one in greedy:
        one.close()


def test_a_client_that_does_not_come_back_is_waited_for_no_longer(admission: AdmissionControl, clock: Clock) -> None:
    with ExitStack() as held:
        last = [held.enter_context(ExitStack()) for _ in range(4)][-1]
        for number in range(3):
            held.enter_context(admission.admit(f"d{number}", "greedy"))
        last.enter_context(admission.admit("d3", "greedy"))
        with pytest.raises(UnavailableError), admission.admit("d", "modest"):
            pass
        last.close()
        with pytest.raises(UnavailableError), admission.admit("d3", "greedy"):
            pass
        clock.now += 5.1
        with admission.admit("d3", "greedy"):
            pass


class Crowd:
    """Clients that all want more permits than there are. Client N reads dataset N modulo `datasets`."""

    def __init__(self, number: int, clients: int, datasets: int) -> None:
        self.admission, self.number, self.datasets = AdmissionControl(number, 5.0, "busy", Clock()), number, datasets
        self.held: list[list[ExitStack]] = [[] for _ in range(clients)]
        self.refused: set[int] = set()

    def full(self, client: int) -> bool:
        of_dataset = self.held[client % self.datasets :: self.datasets]
        return sum(map(len, of_dataset)) >= ceil(self.number * SHARE)

    def ask(self, client: int) -> bool:
        request = ExitStack()
        try:
            request.enter_context(self.admission.admit(f"d{client % self.datasets}", f"c{client}"))
        except UnavailableError:
            self.refused.add(client)
            return False
        self.refused.discard(client)
        same = [(other - client) % self.datasets == 0 for other in self.refused]
        could = [other for other, alike in zip(self.refused, same, strict=True) if alike or not self.full(other)]
        assert all(len(self.held[other]) >= len(self.held[client]) for other in could), "one that holds fewer waits"
        self.held[client].append(request)
        return True

    def settle(self) -> None:
        """All clients request permits until no client gets one."""
        while sum(map(self.ask, range(len(self.held)))):
            pass
        assert self.admission.num_held == self.number or all(map(self.full, range(len(self.held)))), "a permit stays unused"

    def end(self, client: int) -> None:
        """The oldest request of `client` ends, if it has one."""
        for request in self.held[client][:1]:
            request.close()
        del self.held[client][:1]


@given(
    clients=st.integers(1, 10), more=st.integers(0, 10), datasets=st.integers(1, 4), ends=st.lists(st.integers(0, 9), max_size=30)
)
def test_no_permit_stays_unused_while_a_client_waits_that_may_take_it(
    clients: int, more: int, datasets: int, ends: list[int]
) -> None:
    crowd = Crowd(clients + more, clients, datasets)
    while crowd.ask(0):  # It comes first and takes all that it gets.
        pass
    for client in ends:
        crowd.settle()
        crowd.end(client % clients)
    crowd.settle()


@pytest.mark.parametrize(("number", "clients"), [(64, 33), (16, 9), (16, 16), (4, 2)])
def test_requests_of_a_greedy_client_pass_to_the_others_until_all_hold_as_many(number: int, clients: int) -> None:
    crowd = Crowd(number, clients, clients)
    while crowd.ask(0):
        pass
    for _ in range(number):
        crowd.settle()
        crowd.end(0)
    crowd.settle()
    assert {len(held) for held in crowd.held} <= {number // clients, -(-number // clients)}
    assert crowd.admission.num_held == number
