"""What processes that run user code get of the environment: variables that libraries read, none that hold a secret; and where modules are found."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, MutableMapping
from fnmatch import fnmatchcase
from typing import Final

ALLOWED: Final = (
    # Where programs and files are, and how text is written.
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "TERM", "LANG", "LANGUAGE", "LC_*", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"),
    *("PYTHON*", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    # Threads, memory and devices of numerical libraries.
    *("OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*", "GLIBC_TUNABLES", "JE_ARROW_*", "ARROW_*", "GRPC_*"),
    *("CUDA_*", "CUDNN_*", "CUBLAS_*", "NCCL_*", "NVIDIA_*", "TORCH*", "PYTORCH_*", "TRITON_*"),
)
"""Names of variables; `*` stands for any end."""
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL")
"""In the name of a variable of a library that holds a secret, such as NVIDIA_API_KEY."""


def look_here_last() -> None:
    """Let modules of the current folder be found, as pipelines may name them, but none of them stand for one of Python or of a package."""
    here = os.getcwd()
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):  # put there by `python -m`, not by PYTHONPATH
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)


def keep_allowed(environment: MutableMapping[str, str], more: Iterable[str] = ()) -> None:
    """Remove all variables from `environment` that neither `ALLOWED` nor `more`, patterns of the same kind, name. What looks like a secret
    by its name stays only if `more` names it.

    For `os.environ` of a service that runs user code, once its configuration is read and before any thread runs: the fork server and its
    workers inherit what is left.
    """
    wanted = tuple(more)
    for name in list(environment):
        patterns = wanted if _SECRET.search(name) else (*ALLOWED, *wanted)
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            del environment[name]
