"""Environment variables and module search path of processes that run user code: variables that libraries read, without secrets."""

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
"""Names of variables that user code may see; `*` matches any end of a name."""
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL")
"""Part of the name of a variable that contains a secret, such as NVIDIA_API_KEY."""


def look_here_last() -> None:
    """Search modules in the current folder last. Pipelines may name modules of this folder, but these modules must not shadow modules of Python or of
    a package.
    """
    here = os.getcwd()
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):  # `python -m` put it there, not PYTHONPATH
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)


def keep_allowed(environment: MutableMapping[str, str], more: Iterable[str] = ()) -> None:
    """Remove all variables from `environment` that neither `ALLOWED` nor `more` matches. A variable with the name of a secret stays only if `more`
    matches it.

    A service that runs user code calls this function for `os.environ` after the service has read its configuration and before any thread runs. The
    fork server and its workers inherit the remaining variables.
    """
    wanted = tuple(more)
    for name in list(environment):
        patterns = wanted if _SECRET.search(name) else (*ALLOWED, *wanted)
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            del environment[name]
