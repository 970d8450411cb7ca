"""Each call needs a role, and tokens have roles, also while they are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from modyn.config.system import SystemConfig
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import ConfigError, SecurityError
from modyn.rpc.access import NEEDED, AccessTokens, Role, derived_token, digest, for_workers

OLD, NEW = "correct horse battery", "another horse battery"


def test_what_deletes_needs_an_admin_and_what_workers_call_does_not() -> None:
    assert {NEEDED[name] for name in NEEDED if "/Delete" in name and name != "/modyn.Storage/DeletedKeys"} == {Role.ADMIN}
    assert NEEDED["/modyn.Storage/SamplesByKey"] is Role.READER
    assert NEEDED["/modyn.ModelStorage/Put"] is Role.WORKER


@pytest.mark.parametrize("role", Role)
def test_a_derived_token_allows_its_role_and_no_more(role: Role) -> None:
    tokens = AccessTokens(SecurityConfig(token=OLD))
    presented = f"Bearer {derived_token(OLD, role)}"
    assert tokens.role(presented) is tokens.role(presented.encode()) is role
    for needed in Role:
        if needed <= role:
            tokens.check(presented, needed, "DeleteSamples")
        else:
            with pytest.raises(
                SecurityError, match=f"DeleteSamples needs the role {needed.name.lower()}, .* of a {role.name.lower()}"
            ):
                tokens.check(presented, needed, "DeleteSamples")


@pytest.mark.parametrize("presented", [None, "", "Bearer", "Bearer " + NEW, OLD, "bearer " + OLD, b"\xff" * 20])
def test_anything_else_is_not_a_token(presented: str | bytes | None) -> None:
    tokens = AccessTokens(SecurityConfig(token=OLD))
    assert tokens.role(presented) is None
    with pytest.raises(SecurityError, match="no valid token"):
        tokens.check(presented, Role.READER, "Get")


def test_without_a_token_everything_is_allowed() -> None:
    tokens = AccessTokens(SecurityConfig())
    assert not tokens.required
    tokens.check(None, Role.ADMIN, "Get")


def test_a_token_is_replaced_while_the_server_runs(tmp_path: Path) -> None:
    """The new token is first accepted in addition to the old token, then sent, and finally the only accepted token."""
    path = tmp_path / "token"
    security = SecurityConfig(token_file=path)
    path.write_text(OLD)
    tokens = AccessTokens(security)
    found = []
    for lines in (f"{OLD}\n", f"{OLD}\n{NEW}\n", f"{NEW}\n{OLD}\n\n", f"{NEW}\n"):
        path.write_text(lines)
        found.append((security.secret(), [tokens.role(f"Bearer {token}") for token in (OLD, NEW)]))
    admin = Role.ADMIN
    assert found == [(OLD, [admin, None]), (OLD, [admin, admin]), (NEW, [admin, admin]), (NEW, [None, admin])]


def test_a_file_that_becomes_wrong_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(OLD)
    tokens = AccessTokens(SecurityConfig(token_file=path))
    for change in (lambda: path.write_text("short"), path.unlink):
        change()
        assert tokens.role(f"Bearer {OLD}") is Role.ADMIN
        assert tokens.role("Bearer short") is None


def test_a_server_may_hold_digests_only(tmp_path: Path) -> None:
    """A process that runs user code has no admin's token then."""
    path = tmp_path / "accepted"
    path.write_text(f"admin {digest(OLD)}\nreader {digest(derived_token(OLD, Role.READER))}\n")
    reader = derived_token(OLD, Role.READER)
    security = SecurityConfig(accepted_file=path, token=reader)
    tokens = AccessTokens(security)
    assert tokens.role(f"Bearer {OLD}") is Role.ADMIN
    assert tokens.role(f"Bearer {reader}") is Role.READER
    assert tokens.role(f"Bearer {derived_token(OLD, Role.WRITER)}") is None
    assert for_workers(SystemConfig(security=security), Role.WORKER).security.token == reader


def test_a_server_with_digests_never_opens_while_their_file_is_empty(tmp_path: Path) -> None:
    """This happens for a moment when a file is rewritten in place."""
    path = tmp_path / "accepted"
    security = SecurityConfig(accepted_file=path)
    path.write_text(f"admin {digest(OLD)}\n")
    tokens = AccessTokens(security)
    for lines, holder in (("", OLD), ("\n", OLD), (f"admin {digest(NEW)}\n", NEW)):
        path.write_text(lines)
        tokens.check(f"Bearer {holder}", Role.ADMIN, "Delete")
        with pytest.raises(SecurityError, match="no valid token"):
            tokens.check(None, Role.READER, "Get")
    path.write_text("")
    with pytest.raises(ConfigError, match=r"accepted names no token, .*; write a line ROLE SHA256 for each .* and rename it"):
        AccessTokens(security)


@pytest.mark.parametrize("line", ["owner " + 64 * "a", "admin abc", "admin"])
def test_a_wrong_line_is_named_but_not_shown(line: str, tmp_path: Path) -> None:
    path = tmp_path / "accepted"
    path.write_text(line)
    with pytest.raises(ConfigError, match=r"accepted has a line that is not ROLE SHA256"):
        AccessTokens(SecurityConfig(accepted_file=path))


def test_workers_get_a_token_of_their_role_and_no_key(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{OLD}\n")
    security = SecurityConfig(tls_cert=tmp_path / "cert", tls_key=tmp_path / "key", token_file=tmp_path / "token")
    limited = for_workers(SystemConfig(security=security, database_url="postgresql://u:p@h/d"), Role.READER)
    assert limited.security == SecurityConfig(tls_ca=tmp_path / "cert", token=derived_token(OLD, Role.READER))
    assert limited.database_url is None
