"""Processes of an installation that are killed at given writes: a `sitecustomize` on their PYTHONPATH watches what they open and rename.

So a kill falls between two steps of a service that take no time, and falls there on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_SITE = '''"""See tests/support/struck_services.py."""
import json, os, re, signal, sys
from pathlib import Path

BLOWS = Path(__file__).with_name("blows.json")
PLACES = re.compile(r"/triggers(/|$)|/feedback/|/training-[0-9]+[.]log$")


def watch(event, arguments):
    if event not in ("open", "os.rename"):
        return
    path = str(arguments[1 if event == "os.rename" else 0])
    if not PLACES.search(path):
        return
    blow, *others = json.loads(BLOWS.read_text()) or [None]
    if not blow or event != blow["event"] or not re.search(blow["path"], path):
        return
    if not blow["with_file"] or os.path.exists(os.path.join(path, blow["with_file"])):
        BLOWS.write_text(json.dumps(others))
        os.kill(blow["pid"] or os.getpid(), signal.SIGKILL)


sys.addaudithook(watch)
'''


@dataclass(frozen=True)
class Blow:
    """A `kill -9`. event, path: when a process opens this path (a regular expression), or renames a file to it. with_file: a file that must be in the
    folder `path` by then; empty: any. pid: of the process to kill; 0: that which does it."""

    event: str
    path: str
    with_file: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Blows:
    """What is still to fall on the watched processes, one after the other."""

    file: Path

    def set(self, blows: Sequence[Blow]) -> None:
        """Replace the kills that are left. No process may be at work."""
        self.file.write_text(json.dumps([asdict(blow) for blow in blows]))

    def left(self) -> list[Blow]:
        """Return the kills that have not happened."""
        return [Blow(**blow) for blow in json.loads(self.file.read_text())]


def plug_in(folder: Path) -> None:
    """Makes Python processes watched that start with `folder` on their PYTHONPATH, and those that they fork: no blow falls on them yet."""
    (folder / "sitecustomize.py").write_text(_SITE)
    blows_of(folder).set(())


def blows_of(folder: Path) -> Blows:
    """Args: folder: of `plug_in`."""
    return Blows(folder / "blows.json")
