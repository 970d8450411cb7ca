"""The tables of the flows in docs/architecture.md name the files that the data passes, no more and no fewer."""

from __future__ import annotations

import pytest

from benchmark.trace_flows import ROOT, trace
from tests.support.documented_flows import documented_flows

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    "flight",
    [
        pytest.param(False, id="locally", marks=pytest.mark.slow),
        pytest.param(True, id="over-flight", marks=pytest.mark.exhaustive),
    ],
)
def test_the_flows_pass_the_files_that_the_tables_name(flight: bool) -> None:
    key, *others = trace(ROOT, flight=flight).items()
    found = {
        f"{key[0]}, {'over Flight' if flight else 'locally'}": {"C++", *key[1]},
        **{name: {*files} for name, files in others},
    }
    named = {name: files for name, (_, files) in documented_flows().items() if name in found}
    assert found.keys() == named.keys()
    assert {name: files - named[name] for name, files in found.items() if files - named[name]} == {}, (
        "these are passed and not named"
    )
    assert {name: named[name] - files for name, files in found.items() if named[name] - files} == {}, (
        "these are named and not passed"
    )
