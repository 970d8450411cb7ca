"""`docs/system.md`: the system file, every field generated from the configuration classes."""

from __future__ import annotations

from collections.abc import Iterator

from modyn.config.system import SERVICES, LogsConfig, SecurityConfig, ServiceConfig, SystemConfig
from modyn.reference.explain import tables
from modyn.reference.schema import JsonSchema, of_model

_HEAD = """\
# The system file

The tables are made from the configuration classes by `python -m modyn.reference.schema --system`; edit these, not this file.

It says how an installation runs: where its state lies, how its services are reached, how much they may take. None is needed: each field has a
default, with which everything runs on this machine, in the folder `.modyn`. To set some:

```yaml
state_dir: /var/lib/modyn
storage:
  num_threads: 4
  short_cut: "on"     # workers read samples by themselves, or fail with the reason
  replicas: 2         # further processes that serve payloads
trainer_server:
  max_workers: 2
```

```
modyn --config modyn.yaml up        # or MODYN_CONFIG=modyn.yaml for all commands, and for scripts with modyn.Client or OnlineDataset
MODYN_STORAGE__NUM_THREADS=8 modyn up
```

A variable of the environment wins over the file: `MODYN_`, the section, `__`, the field. Services that run take changes when they are started
again: `modyn down`, `modyn up`. Unknown keys are refused. What storage and its workers do with these fields: [the data path](data-path.md).

"""


def system_reference() -> str:
    return _HEAD + "\n".join(_sections()).rstrip("\n") + "\n"


def _sections() -> Iterator[str]:
    whole = of_model(SystemConfig)
    own = {name: field for name, field in whole["properties"].items() if name not in (*SERVICES, "logs", "security")}
    yield "## The installation"
    yield ""
    yield from tables({"properties": own}, "###", "")
    yield "## `logs`"
    yield ""
    yield from tables(of_model(LogsConfig), "###", "logs")
    yield "## `security`"
    yield ""
    yield "Who may talk to the services. Off loopback all of it is required: [deployment](deployment.md)."
    yield ""
    yield from tables(of_model(SecurityConfig), "###", "security")
    common = of_model(ServiceConfig)
    yield "## Each service"
    yield ""
    yield f"The sections {', '.join(f'`{name}`' for name in SERVICES)} have these fields:"
    yield ""
    yield from tables(common, "###", "")
    for name in SERVICES:
        fields = _without(whole["properties"][name], common)
        if fields["properties"]:
            yield f"## `{name}`"
            yield ""
            yield from tables(fields, "###", name)


def _without(section: JsonSchema, common: JsonSchema) -> JsonSchema:
    """The fields of one service that not all have. What a dataset is stands in `docs/datasets.md`."""
    fields = {name: field for name, field in section["properties"].items() if name not in common["properties"]}
    if "datasets" in fields:
        fields["datasets"] = {**fields["datasets"], "items": {"type": "object"}}
        fields["datasets"]["description"] += "; see [datasets](datasets.md)"
    return {"properties": fields}
