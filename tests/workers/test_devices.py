"""Number of GPUs, with and without PyTorch in the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modyn.errors import UnavailableError
from modyn.workers import devices


@pytest.mark.parametrize(
    ("device", "found", "told"),
    [
        ("cpu", 0, None),
        ("cuda", 1, None),
        ("cuda:1", 2, None),
        ("cuda", 0, "finds no CUDA device on this machine; use cpu"),
        ("cuda:2", 2, "'cuda:2' does not exist; this machine has cuda:0, cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, device: str, found: int, told: str | None) -> None:
    monkeypatch.setattr(devices, "num_gpus", lambda: found)
    message = devices.missing_device(device)
    assert message is None if told is None else told in str(message)


def test_a_driver_that_fails_is_an_error_that_may_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyTorch with a broken driver in the process that counts the GPUs."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('Unexpected error from cudaGetDeviceCount')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    devices.gpu_bytes.cache_clear()
    with pytest.raises(UnavailableError, match=r"count the GPUs of this machine: RuntimeError: Unexpected error .*`nvidia-smi`"):
        devices.gpu_bytes()
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)")
    assert devices.gpu_bytes() == ()  # a failure is not cached
    devices.gpu_bytes.cache_clear()


def test_a_process_without_torch_gets_the_same_answer_and_stays_without_it() -> None:
    code = "import sys; from modyn.workers.devices import num_gpus; print(num_gpus(), 'torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert answer == [str(torch.cuda.device_count() if torch.cuda.is_available() else 0), "False"]
