"""A model as an ONNX file, for runtimes that know no PyTorch. Needs `pip install modyn[onnx]`."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from modyn.atomic_write import replacing
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.models.export import ModelInput, TracedInputs, export_program, input_names, named_outputs, not_exported
from modyn.registry import nearest

if TYPE_CHECKING:
    from torch import nn

_LARGEST: Final = 2**31 - 1
"""Bytes of a file that protobuf can write."""


def exporter(format: str) -> Callable[[nn.Module, Sequence[ModelInput], Path], None]:
    """Return what writes models in a format: `torch` or `onnx`. Raises InvalidArgumentError: there is no such format."""
    known = {"torch": export_program, "onnx": export_onnx}
    if format not in known:
        raise InvalidArgumentError(
            f"there is no format '{format}' of programs{nearest(format, list(known))}; write {' or '.join(known)}"
        )
    return known[format]


def export_onnx(model: nn.Module, inputs: Sequence[ModelInput], path: Path) -> None:
    """Write a model in evaluation mode as one ONNX file, for batches of any size, which is complete or as before.

    Names are those that `modyn serve` uses, by `input_names` and `named_outputs`. The file is run once, by ONNX Runtime if it is installed, else by
    the reference of ONNX, and must return what the model returns.

    Args: inputs: at least one; all by position, or all by name.
    Raises: ConfigError: ONNX is not installed. InvalidArgumentError: the model does not take these inputs, its code cannot be followed, or it is
    larger than a file may be (2 GiB). OSError: as it is written.
    """
    import torch

    from modyn.models.onnx_bags import summed_bags

    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"exporting to ONNX needs {name}, which is not installed; `pip install modyn[onnx]` brings it")
    traced = TracedInputs.of(inputs)
    args, kwargs = traced.three
    try:
        with torch.no_grad(), _quietly():
            expected = named_outputs(model(*args, **kwargs))
            with summed_bags(model):
                program: Any = torch.onnx.export(
                    model,
                    *traced.two[:1],
                    kwargs=traced.two[1] or None,
                    input_names=input_names(inputs),
                    output_names=list(expected),
                    dynamic_shapes=traced.shapes,
                    dynamo=True,
                    verbose=False,
                )
            proto = program.model_proto
            _open_sizes(proto.graph, {name: values.shape for name, values in expected.items()})
            content: bytes = proto.SerializeToString() if proto.ByteSize() <= _LARGEST else b""
            if content:
                found = _run(content, dict(zip(input_names(inputs), [*args, *kwargs.values()], strict=True)))
                for name, values in expected.items():
                    torch.testing.assert_close(torch.from_numpy(found[name]), values, rtol=1e-3, atol=1e-4)
    except Exception as error:
        raise not_exported(model, inputs, "ONNX", error) from error
    if not content:
        raise InvalidArgumentError(
            f"{type(model).__name__} is too large for one ONNX file of 2 GiB; export it as a program of torch.export"
        )
    with replacing(path, path.with_name(path.name + ".tmp")) as file:
        file.write(content)


def _open_sizes(graph: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Let sizes be any that are other ones for another batch. Where a parameter has the name of an input, torch writes those that it has followed.

    Args: graph: of a file. shapes: of its outputs for another number of samples than the followed one.
    """
    for output in graph.output:
        for dim, size in zip(output.type.tensor_type.shape.dim, shapes[output.name], strict=True):
            if dim.HasField("dim_value") and dim.dim_value != size:
                dim.dim_param = "batch"
    del graph.value_info[:]  # Sizes of values in between, which may be wrong too: runtimes infer them.


def _run(content: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the outputs of an ONNX file are, as arrays by name."""
    given = {name: values.numpy() for name, values in inputs.items()}
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, given), strict=True))
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load_from_string(content))
    return dict(zip(evaluator.output_names, evaluator.run(None, given), strict=True))


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch's exporter and what it is made of write to users of its own command."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
