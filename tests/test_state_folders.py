"""Folders of another version are refused, and left as they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import modyn
from modyn.errors import ConfigError
from modyn.state_folders import STATE_VERSION, check_state, claim_state, release_shared_memory, shared_folder
from tests.support.disk_recorder import recorded_disk


def test_an_installation_gives_up_its_own_shared_memory_only(tmp_path: Path) -> None:
    own, other = (shared_folder(tmp_path / name) for name in ("own", "other"))
    try:
        for folder in (own, other):
            (folder / "decoded").mkdir(parents=True)
            (folder / "decoded" / "1").write_bytes(b"sample")
        for _ in range(2):
            release_shared_memory(tmp_path / "own")
            assert (own.exists(), (other / "decoded" / "1").exists()) == (False, True)
    finally:
        release_shared_memory(tmp_path / "other")
    assert not other.exists()


def test_a_new_folder_is_marked_and_opens_again(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "storage"
    check_state(folder)
    assert not folder.exists()
    claim_state(folder)
    assert (folder / "state_version").read_text() == f"{STATE_VERSION}\n"
    (folder / "lock").touch()
    claim_state(folder)
    check_state(folder)


def test_a_crash_before_the_mark_is_complete_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "state_version.77-1.tmp").touch()
    claim_state(tmp_path)
    check_state(tmp_path)
    assert (tmp_path / "state_version").read_text() == f"{STATE_VERSION}\n"


@pytest.mark.parametrize(
    ("mark", "found"),
    [(None, "no file state_version and holds index, lock, run, …"), ("3", "state version 3 and"), ("99", "state version 99 and")],
)
def test_another_version_is_refused_with_what_to_do(tmp_path: Path, mark: str | None, found: str) -> None:
    for name in ("index", "lock", "run", "x"):
        (tmp_path / name).write_text(name)
    if mark is not None:
        (tmp_path / "state_version").write_text(mark)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    for open_state in (check_state, claim_state):
        with pytest.raises(ConfigError) as caught:
            open_state(tmp_path)
        message = str(caught.value)
        assert f"{tmp_path} was written by another version of Modyn: it has {found}" in message
        assert (
            f"state version {STATE_VERSION} only. Nothing was changed. Continue with the version that wrote it; or set another state_dir"
            in message
        )
        assert "register the datasets again" in message
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_database_of_another_version_is_refused_too() -> None:
    """This version does not have the revision of such a database."""
    revisions = [path.name for path in Path(modyn.__file__).parent.glob("*/migrations/versions/*.py")]
    assert len(revisions) >= 5
    assert all(name.startswith(f"{STATE_VERSION}0") for name in revisions), revisions


def test_a_folder_is_not_refused_after_a_kill_and_a_power_loss(tmp_path: Path) -> None:
    """What a killed process marked and did not sync is read by the next one, which must not take the mark for durable."""
    killed, step = True, 0
    while killed:
        folder = tmp_path / str(step)
        folder.mkdir()
        with recorded_disk(folder) as disk:
            killed = disk.kill_at(step, partial(claim_state, folder / "state"))
            claim_state(folder / "state")
            (folder / "state" / "content").touch()
            disk.note("claimed")
        for loss in disk.losses():
            with loss.restored():
                check_state(folder / "state")
                assert not loss.notes or (folder / "state" / "state_version").exists()
        step += 1
    assert step > 4
