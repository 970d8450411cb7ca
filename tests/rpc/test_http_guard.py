"""HTTP requests that a server accepts."""

from __future__ import annotations

import pytest

from modyn.errors import InvalidArgumentError, SecurityError
from modyn.rpc.http_guard import HttpGuard

Headers = dict[str, str]


def check(guard: HttpGuard, headers: Headers) -> None:
    guard.check([(name.encode(), value.encode("latin-1")) for name, value in headers.items()])


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:8000"},
        {"host": "127.1.2.3"},
        {"host": "LocalHost:8000"},
        {"host": "[::1]:8000"},
        {"host": "box:1"},
        {"host": "models.example.org"},
        {"host": "localhost:8000", "origin": "http://localhost:8000", "sec-fetch-site": "same-origin"},
        {"host": "models.example.org", "origin": "https://models.example.org"},
        {"host": "localhost", "sec-fetch-site": "none"},
    ],
)
def test_what_is_meant_for_this_server_is_answered(headers: Headers) -> None:
    guard = HttpGuard("box", False, ("models.example.org",))
    for _ in range(2):
        check(guard, headers)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"host": "evil.example"}, "not known as 'evil.example'.* serving.allowed_hosts"),
        ({"host": "127.0.0.1.evil.example:8000"}, "not known as"),
        ({"host": "localhost.evil.example"}, "not known as"),
        ({"host": "10.0.0.1"}, "not known as"),
        ({"host": "0.0.0.0:8000"}, "not known as"),
        ({"host": "localhost", "origin": "http://evil.example"}, "a web page of 'http://evil.example'"),
        ({"host": "localhost:8000", "origin": "http://localhost:3000"}, "a web page of"),
        ({"host": "localhost", "origin": "null"}, "a web page of 'null'"),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, "a web page of 'elsewhere'"),
        ({"host": "localhost", "sec-fetch-site": "same-site"}, "a web page of"),
    ],
)
def test_what_a_page_of_a_stranger_causes_is_refused_where_no_token_is_needed(headers: Headers, message: str) -> None:
    with pytest.raises(SecurityError, match=message):
        check(HttpGuard("127.0.0.1", False), headers)
    check(HttpGuard("0.0.0.0", True), headers)  # no page has the token


def test_names_that_are_set_count_also_with_a_token() -> None:
    guard = HttpGuard("0.0.0.0", True, ("models.example.org",))
    check(guard, {"host": "models.example.org:443"})
    with pytest.raises(SecurityError, match="not known as"):
        check(guard, {"host": "other.example.org"})


@pytest.mark.parametrize("needs_token", [False, True])
@pytest.mark.parametrize(
    "host", [None, "", "a b", "me@localhost", "localhost:80:80", "http://localhost", "localhost/", "localhost:999999"]
)
def test_a_host_that_is_none_is_refused(host: str | None, needs_token: bool) -> None:
    with pytest.raises(InvalidArgumentError, match="no Host, or one that is not"):
        check(HttpGuard("127.0.0.1", needs_token), {} if host is None else {"host": host})


@pytest.mark.parametrize("name", [b"host", b"authorization", b"content-type", b"inference-header-content-length"])
def test_what_may_come_once_is_not_taken_twice(name: bytes) -> None:
    guard = HttpGuard("127.0.0.1", True)
    with pytest.raises(InvalidArgumentError, match=f"2 headers {name.decode()}; send one"):
        guard.check([(b"host", b"localhost"), *([(name, b"localhost")] * (1 if name == b"host" else 2))])
    guard.check([(b"host", b"localhost"), (b"x-forwarded-for", b"a"), (b"x-forwarded-for", b"b")])


def test_what_it_remembers_of_hosts_is_bounded() -> None:
    guard = HttpGuard("0.0.0.0", True)
    for number in range(1000):
        check(guard, {"host": f"host-{number}"})
    assert len(guard._known) <= 64
