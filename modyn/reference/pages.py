"""The generated blocks of the pages in `docs/`, made from the configuration classes; the prose around them is written by hand.

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`. `python -m modyn.reference.pages FILE…` writes the blocks of files again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from modyn.config.alerts import AlertsConfig
from modyn.config.cache import CacheConfig
from modyn.config.dataset import DatasetConfig
from modyn.config.logs import LogsConfig
from modyn.config.retention import RetentionConfig
from modyn.config.security import SecurityConfig
from modyn.config.serving import ServingConfig
from modyn.config.system import SERVICES, ServiceConfig, SystemConfig
from modyn.reference.api import api_reference
from modyn.reference.explain import sentence, tables
from modyn.reference.schema import JsonSchema, of_model, one_of, pipeline_json_schema, policies
from modyn.storage.formats import REGISTRY

_BLOCK = re.compile(r"(?<=<!-- generated: )(\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def fill(page: str) -> str:
    """Return the Markdown `page` with its generated blocks up to date, without plug-ins."""
    return _BLOCK.sub(lambda block: f"{block[1]} -->\n\n" + "\n".join(_BLOCKS[block[1]]()).rstrip("\n") + "\n\n", page)


def _pipeline() -> Iterator[str]:
    schema = pipeline_json_schema(plugins=False)
    told: dict[str, str] = {}
    for name, section in schema["properties"].items():
        optional = "" if name in schema["required"] else " (optional)"
        yield f"## `{name}`{optional}\n\n{sentence(section.get('description', ''))}\n"
        yield from tables(section, "###", name, told)


def _system() -> Iterator[str]:
    whole, common = of_model(SystemConfig), of_model(ServiceConfig)
    apart = (*SERVICES, "logs", "retention", "security", "alerts", "cache", "serving")
    own = {name: field for name, field in whole["properties"].items() if name not in apart}
    yield "## The installation\n"
    yield from tables({"properties": own}, "###", "")
    yield "## `logs`\n"
    yield from tables(of_model(LogsConfig), "###", "logs")
    yield f"## `retention`\n\n{RetentionConfig.__doc__}\n"
    yield from tables(of_model(RetentionConfig), "###", "retention")
    yield "## `security`\n\nAccess to the services. Beyond loopback, TLS and a token are required: [deployment](deployment.md).\n"
    yield from tables(of_model(SecurityConfig), "###", "security")
    yield f"## `alerts`\n\n{AlertsConfig.__doc__} What they hold: [deployment](deployment.md#alerts).\n"
    yield from tables(of_model(AlertsConfig), "###", "alerts")
    yield f"## `cache`\n\n{CacheConfig.__doc__} A pipeline's own section `cache` goes before this one.\n"
    yield from tables(of_model(CacheConfig), "###", "cache")
    yield f"## `serving`\n\n{ServingConfig.__doc__}\n"
    yield from tables(of_model(ServingConfig), "###", "serving")
    yield f"## Each service\n\nThe sections {', '.join(f'`{name}`' for name in SERVICES)} have these fields:\n"
    yield from tables(common, "###", "")
    for name in SERVICES:
        fields = _own_fields(whole["properties"][name], common)
        if fields["properties"]:
            yield f"## `{name}`\n"
            yield from tables(fields, "###", name)


def _own_fields(section: JsonSchema, common: JsonSchema) -> JsonSchema:
    """The fields of one service that not all have. What a dataset is stands in `docs/datasets.md`."""
    fields = {name: field for name, field in section["properties"].items() if name not in common["properties"]}
    if "datasets" in fields:
        fields["datasets"] = {**fields["datasets"], "items": {"type": "object"}}
        fields["datasets"]["description"] += "; see [datasets](datasets.md)"
    return {"properties": fields}


_BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "pipeline": _pipeline,
    "dataset": lambda: tables(of_model(DatasetConfig), "###", ""),
    "formats": lambda: tables(one_of(policies(REGISTRY, plugins=False), "file_wrapper"), "###", "file_wrapper_config"),
    "system": _system,
    "api": api_reference,
}

if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(fill(page.read_text()))
