"""Pure decisions: which version answers, which table is next, what may be unloaded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.serving.versions.routing import Canary, ModelRoutes, RoutingTable, share_of, to_retire


def table(*versions: str, serving: str | None = None) -> RoutingTable[str]:
    made: RoutingTable[str] = RoutingTable()
    for version in versions:
        made = made.with_version("digits", version, f"target {version}")
    return made if serving is None else made.with_serving("digits", serving)


def test_a_request_goes_to_the_version_it_names_else_to_the_one_that_serves() -> None:
    two = table("1", "2", serving="2")
    assert two.route("digits", None, "id").target == "target 2"
    assert two.route("digits", "1", "id").target == "target 1"
    with pytest.raises(NotFoundError, match="there is no model 'digist', did you mean 'digits'?"):
        two.route("digist", None, "id")
    with pytest.raises(NotFoundError, match="model 'digits' has no version 3 that is loaded; loaded are 1, 2"):
        two.route("digits", "3", "id")
    with pytest.raises(UnavailableError, match="no version of model 'digits' serves yet"):
        table("1").route("digits", None, "id")


def test_a_change_leaves_the_table_before_as_it_was() -> None:
    before = table("1", "2", serving="1")
    after = before.with_serving("digits", "2")
    assert (before.route("digits", None, "").version, after.route("digits", None, "").version) == ("1", "2")


@given(st.lists(st.text(max_size=20), unique=True, max_size=50), st.floats(0, 1))
def test_a_canary_answers_the_same_ids_whenever_it_is_asked(ids: list[str], share: float) -> None:
    routed = table("1", "2", serving="1").with_canary("digits", Canary("2", share))
    for id_ in ids:
        assert routed.route("digits", None, id_).version == ("2" if share_of(id_) < share else "1")
        assert routed.route("digits", "1", id_).version == "1"


def test_a_canary_answers_about_its_share_and_all_or_nothing_at_the_ends() -> None:
    ids = [f"request-{number}" for number in range(4000)]
    base = table("1", "2", serving="1")
    for share, low, high in ((0.0, 0, 0), (0.25, 850, 1150), (1.0, 4000, 4000)):
        routed = base.with_canary("digits", Canary("2", share))
        assert low <= sum(routed.route("digits", None, id_).version == "2" for id_ in ids) <= high
    with pytest.raises(InvalidArgumentError, match="write one from 0 to 1"):
        base.with_canary("digits", Canary("2", 1.5))
    with pytest.raises(NotFoundError):
        base.with_canary("digits", Canary("3", 0.5))


def test_a_shadow_gets_copies_of_what_others_answer() -> None:
    routed = table("1", "2", "3", serving="1").with_shadow("digits", "2")
    assert routed.route("digits", None, "").shadow == "target 2"
    assert routed.route("digits", "3", "").shadow is None, "a request that names a version is not copied"
    assert routed.with_serving("digits", "2").route("digits", None, "").shadow is None, "it serves itself now"


def test_a_version_in_use_is_not_removed() -> None:
    routed = table("1", "2", "3", "4", serving="1").with_canary("digits", Canary("2", 0.1)).with_shadow("digits", "3")
    for version, how in (("1", "serves"), ("2", "is the canary"), ("3", "is the shadow")):
        with pytest.raises(ConflictError, match=f"version {version} of model 'digits' {how}"):
            routed.without_version("digits", version)
    assert sorted(routed.without_version("digits", "4").routes("digits").versions) == ["1", "2", "3"]


def test_what_served_last_stays_as_standby() -> None:
    routes = ModelRoutes(dict.fromkeys("12345", ""), serving="5", canary=Canary("1", 0.5))
    order = {"2": 0, "4": 1, "3": 2}
    assert to_retire(routes, order, 0) == ["3", "4", "2"]
    assert to_retire(routes, order, 1) == ["4", "2"]
    assert to_retire(routes, order, 9) == []
