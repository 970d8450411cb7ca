"""Each line of a service's log names the service, for each thread that writes it."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import logging, threading
from modyn.rpc.logs import bind, configure_logs, get_logger

configure_logs("storage")
logger = get_logger("files")
with bind(run_id="r-1"):
    logger.info("inside", n=1)
thread = threading.Thread(target=lambda: logger.info("elsewhere"))
thread.start(); thread.join()
logging.getLogger("library").warning("of a %s", "library")
logging.getLogger("library").info("not for us")
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("broken")
"""


def test_lines_are_json_with_service_and_ids() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["inside", "elsewhere", "of a library", "broken"]
    assert {line["service"] for line in lines} == {"storage"}
    assert [line.get("run_id") for line in lines] == ["r-1", None, None, None]
    assert [line["level"] for line in lines] == ["info", "info", "warning", "error"]
    assert "ZeroDivisionError" in lines[-1]["exception"]


def test_the_output_of_a_script_is_its_own() -> None:
    program = 'from modyn.rpc.logs import get_logger; get_logger("files").warning("found", n=1); get_logger("files").info("well")'
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "found" in done.stderr
    assert "well" not in done.stderr, "an iteration that goes well is not worth a line"


def test_a_script_shows_no_local_variables_of_what_failed() -> None:
    program = """
from modyn.rpc.logs import get_logger

def connect(url):
    raise OSError("refused")

try:
    connect("postgresql://modyn:" + "pass" + "word-1@host/name")
except OSError:
    get_logger("files").exception("broken")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "OSError: refused" in done.stderr
    assert "password-1" not in done.stderr
