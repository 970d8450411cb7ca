"""What several services answer alike, to and from the wire: problems of a section, plug-ins, states of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from modyn.config.base import Problem
from modyn.proto import common_pb2
from modyn.records import JobState
from modyn.registry import Plugin, Registry

_STATE = "JOB_STATE_"


def problems_to_reply(problems: Iterable[Problem]) -> common_pb2.SectionReply:
    return common_pb2.SectionReply(problems=[common_pb2.ConfigProblem(path=p.path, message=p.message) for p in problems])


def problems_from_reply(reply: common_pb2.SectionReply) -> list[Problem]:
    return [Problem(problem.path, problem.message) for problem in reply.problems]


def plugins_to_reply(*registries: Registry[Any]) -> common_pb2.PluginList:
    """Everything in the registries, one after the other, by id."""
    found = [registry.plugins[id_] for registry in registries for id_ in registry]
    return common_pb2.PluginList(
        plugins=[common_pb2.Plugin(group=p.group, id=p.id, path=p.path, distribution=p.distribution) for p in found]
    )


def plugins_from_reply(reply: common_pb2.PluginList) -> list[Plugin]:
    return [Plugin(plugin.group, plugin.id, plugin.path, plugin.distribution) for plugin in reply.plugins]


def state_to_proto(state: JobState) -> str:
    """A field of a message takes the name of a value as well as its number."""
    return f"{_STATE}{state.name}"


def state_from_proto(state: common_pb2.JobState) -> JobState:
    return JobState[common_pb2.JobState.Name(state).removeprefix(_STATE)]
