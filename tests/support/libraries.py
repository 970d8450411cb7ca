"""Libraries of models in tests, and a tiny network of transformers.

The libraries are in a folder of their own (`make .venv/model-libraries/.installed`), because torchmetrics, which many tests import, would import them
too, and take twice the time.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

FOLDER: Final = Path(__file__).parents[2] / ".venv" / "model-libraries"

TINY_BERT: Final[dict[str, Any]] = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def model_libraries() -> Iterator[None]:
    """Tests of the module can import the libraries."""
    sys.path.append(str(FOLDER))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(FOLDER))


def needs(library: str) -> pytest.MarkDecorator:
    """Skip a test without this library, unless MODYN_TESTS_NO_SKIP is set."""
    is_missing = not (FOLDER / library).is_dir() and find_spec(library) is None
    return pytest.mark.skipif(is_missing and "MODYN_TESTS_NO_SKIP" not in os.environ, reason=f"{library} is not installed")


def tiny_bert(folder: Path) -> Path:
    """Write the configuration of a tiny network, without weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY_BERT))
    return folder
