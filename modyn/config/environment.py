"""The environment variables `MODYN_…` that override the system file: those that are none are found, so that none is without effect."""

from __future__ import annotations

import os
import re

from pydantic import BaseModel

from modyn.registry import nearest

_OTHER_VARIABLES = re.compile(
    # Kubernetes sets these for each service of the namespace; one may be called modyn or modyn-storage.
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT|PORT)(_\w+)?"
    # What the compose file and the tests read.
    r"|DATA_DIR|WORK_DIR|CLI_UID|BASE|(POSTGRES_|REDIS_)?IMAGE|SHM_SIZE|REDIS_MAXMEMORY|MEMORY_\w+|TESTS_NO_SKIP"
)
"""What may follow MODYN_ without being a setting."""


def misspelt_variables(settings: type[BaseModel]) -> list[str]:
    """Return a message for each variable `MODYN_…` that names no field of `settings` or of one of its sections."""
    known = ["MODYN_CONFIG"]
    for name, field in settings.model_fields.items():
        section = field.annotation
        known.append(f"MODYN_{name}".upper())
        if isinstance(section, type) and issubclass(section, BaseModel):
            known += [f"MODYN_{name}__{key}".upper() for key in section.model_fields]
    unknown = [name for name in sorted(os.environ) if name.upper().startswith("MODYN_") and name.upper() not in known]
    return [
        f"environment: {name} is no setting{nearest(name.upper(), known) or '.'} A section and its field are joined by two underscores; "
        "correct the name, or unset the variable"
        for name in unknown
        if "__" in name or not _OTHER_VARIABLES.fullmatch(name.upper().removeprefix("MODYN_"))
    ]
