"""Generate blocks of the pages in `docs/reference/`. The text around the blocks is written by hand.

A block is between `<!-- generated: NAME -->` and `<!-- end -->`. `python -m modyn.reference.pages` updates all blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from modyn.config.dataset import DatasetConfig
from modyn.config.serving import ServingConfig
from modyn.config.system import SERVICES, LogsConfig, ServiceConfig, SystemConfig
from modyn.config.system_sections.alerts import AlertsConfig
from modyn.config.system_sections.retention import RetentionConfig
from modyn.config.system_sections.security import SecurityConfig
from modyn.reference.api import api_reference
from modyn.reference.markdown import Described, field_lists, sentence
from modyn.reference.schema import JsonSchema, of_model, one_of, pipeline_json_schema, policies
from modyn.storage.formats import REGISTRY

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"

_BLOCK = re.compile(r"(?<=<!-- generated: )(\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def fill(page: str) -> str:
    """Return a Markdown page with updated blocks. Plug-ins are left out."""
    return _BLOCK.sub(lambda block: f"{block[1]} -->\n\n" + _text(block[1]) + "\n\n", page)


def _text(block: str) -> str:
    if block in _OTHER_BLOCKS:
        return "\n".join(_OTHER_BLOCKS[block]()).rstrip("\n")
    return _sections()[block]


@cache
def _sections() -> dict[str, str]:
    """Return the sections of a pipeline by name. A section that `evaluation` and `trigger` share is described with `evaluation`."""
    schema = pipeline_json_schema(plugins=False)
    names = sorted(schema["properties"], key=lambda name: (name != "evaluation", name == "online"))
    described, texts = Described(), {}
    for name in names:
        described.page = name
        section = schema["properties"][name]
        need = "Required." if name in schema["required"] else "Optional."
        lines = field_lists(section, "##", name, described)
        texts[name] = "\n".join([f"{sentence(section.get('description', ''))} {need}\n", *lines]).rstrip("\n")
    return texts


def _list_of_sections() -> Iterator[str]:
    schema = pipeline_json_schema(plugins=False)
    for name, section in schema["properties"].items():
        need = "" if name in schema["required"] else " (optional)"
        yield f"- [`{name}`]({name}.md){need}: {sentence(section.get('description', ''))}"


def _system() -> Iterator[str]:
    whole, common = of_model(SystemConfig), of_model(ServiceConfig)
    apart = (*SERVICES, "logs", "retention", "security", "alerts", "cache", "serving")
    own = {name: field for name, field in whole["properties"].items() if name not in apart}
    yield "## The installation\n"
    yield from _fields({"properties": own}, "")
    yield "## `logs`\n"
    yield from _fields(of_model(LogsConfig), "logs")
    yield f"## `retention`\n\n{RetentionConfig.__doc__}\n"
    yield from _fields(of_model(RetentionConfig), "retention")
    yield "## `security`\n\nAccess to the services. Beyond loopback, TLS and a token are required: [deployment](../how-to/deployment.md).\n"
    yield from _fields(of_model(SecurityConfig), "security")
    yield f"## `alerts`\n\n{AlertsConfig.__doc__} Their content: [production](../how-to/production.md#alerts).\n"
    yield from _fields(of_model(AlertsConfig), "alerts")
    yield "## `cache`\n\nThe same fields as the section [`cache`](cache.md) of a pipeline, which overrides this one.\n"
    yield f"## `serving`\n\n{ServingConfig.__doc__}\n"
    yield from _fields(of_model(ServingConfig), "serving")
    yield f"## Each service\n\nThe sections {', '.join(f'`{name}`' for name in SERVICES)} have these fields:\n"
    yield from _fields(common, "")
    trainer, evaluator = (_own_fields(whole["properties"][name], common) for name in ("trainer_server", "evaluator"))
    both = {name: field for name, field in trainer.items() if evaluator.get(name) == field}
    yield "## Services with workers\n\nThe sections `trainer_server` and `evaluator` also have these fields:\n"
    yield from _fields({"properties": both}, "")
    for name in SERVICES:
        fields = _own_fields(whole["properties"][name], common)
        if own_fields := {name: field for name, field in fields.items() if both.get(name) != field}:
            yield f"## `{name}`\n"
            yield from _fields({"properties": own_fields}, name)


def _fields(schema: JsonSchema, path: str) -> Iterator[str]:
    yield from field_lists(schema, "###", path, Described(path))


def _own_fields(section: JsonSchema, common: JsonSchema) -> dict[str, JsonSchema]:
    """Return the fields that only this service has. A dataset's fields are in `docs/reference/formats.md`."""
    fields = {name: field for name, field in section["properties"].items() if name not in common["properties"]}
    if "datasets" in fields:
        fields["datasets"] = {**fields["datasets"], "items": {"type": "object"}}
        fields["datasets"]["description"] += "; see [datasets](formats.md)"
    return fields


_OTHER_BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "sections": _list_of_sections,
    "dataset": lambda: _fields(of_model(DatasetConfig), ""),
    "formats": lambda: _fields(one_of(policies(REGISTRY, plugins=False), "file_wrapper"), "file_wrapper_config"),
    "system": _system,
    "api": api_reference,
}

if __name__ == "__main__":
    for page in sorted(FOLDER.glob("*.md")):
        page.write_text(fill(page.read_text()))
