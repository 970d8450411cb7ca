"""Export a model as an ONNX file, for runtimes without PyTorch. Needs `pip install modyn[onnx]`."""

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
"""Largest number of bytes of a file that protobuf can write."""


def exporter(format: str) -> Callable[[nn.Module, Sequence[ModelInput], Path], None]:
    """Return the function that writes models in a format: `torch` or `onnx`. Raises InvalidArgumentError: the format is unknown."""
    known = {"torch": export_program, "onnx": export_onnx}
    if format not in known:
        raise InvalidArgumentError(
            f"there is no format '{format}' of programs{nearest(format, list(known))}; write {' or '.join(known)}"
        )
    return known[format]


def export_onnx(model: nn.Module, inputs: Sequence[ModelInput], path: Path) -> None:
    """Write a model, which must be in evaluation mode, as one ONNX file for batches of any size. The write is atomic.

    Inputs and outputs have the same names as in `modyn serve`, from `input_names` and `named_outputs`. Before the function writes the file, it runs
    the program once, with ONNX Runtime if ONNX Runtime is installed, otherwise with the reference implementation. The program must return the same
    values as the model.

    Args: inputs: at least one; all by position, or all by name.
    Raises: ConfigError: ONNX is not installed. InvalidArgumentError: the model does not take these inputs, cannot be traced, or is larger
    than 2 GiB. OSError: writing failed.
    """
    import torch

    from modyn.models.calls import plain_outputs
    from modyn.models.onnx_bags import replace_bags

    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"exporting to ONNX needs {name}, which is not installed; `pip install modyn[onnx]` installs it")
    traced = TracedInputs.of(inputs)
    args, kwargs = traced.three
    try:
        with torch.no_grad(), _quietly(), plain_outputs(model):
            expected = named_outputs(model(*args, **kwargs))
            with replace_bags(model):
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
    """Make sizes that differ between batches dynamic. If a parameter has the name of an input, torch writes the fixed sizes of the traced batch.

    Args: graph: graph of a file. shapes: shapes of the graph's outputs for a number of samples that was not traced.
    """
    for output in graph.output:
        for dim, size in zip(output.type.tensor_type.shape.dim, shapes[output.name], strict=True):
            if dim.HasField("dim_value") and dim.dim_value != size:
                dim.dim_param = "batch"
    del graph.value_info[:]  # Sizes of intermediate values may also be wrong; without them, runtimes infer the sizes.


def _run(content: bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run an ONNX file and return its outputs by name."""
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
    """Suppress the output that torch's exporter and its dependencies print."""
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
