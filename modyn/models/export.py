"""Export a model as a program of `torch.export`: a file that PyTorch runs without Modyn and without the model's Python code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from modyn.atomic_write import replacing
from modyn.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch import Tensor, nn

FEATURES: Final = "features"
"""Text that users write in place of inputs to select the inputs of `feature_inputs`."""
_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:,\d+)*)(?::(?P<dtype>[a-z]+\d+|bool))?")


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input of a model. The shape of an input has no dimension for the batch."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    name: str | None = None
    """Name of the argument; None: the input is passed by position."""
    rows: Literal["batch", "entries"] = field(default="batch", repr=False)
    """Meaning of the first dimension of the input: samples, or all sparse features of the samples."""

    def __str__(self) -> str:
        """Return the input in the form that `parse_input` reads."""
        dtype = "" if self.dtype == "float32" else f":{self.dtype}"
        return f"{f'{self.name}=' if self.name else ''}{','.join(map(str, self.shape))}{dtype}"


def feature_inputs(num_dense: int, num_sparse: int) -> Sequence[ModelInput]:
    """Return the inputs of a model with the section `preprocessing`: the features in the form of `modyn.preprocessing.Features.to_torch`.

    >>> [(given.name, given.shape, given.rows) for given in feature_inputs(2, 57)]
    [('indices', (), 'entries'), ('offsets', (), 'batch'), ('values', (), 'entries'), ('dense', (2,), 'batch')]
    >>> feature_inputs(3, 0)
    [ModelInput(shape=(3,), dtype='float32', name=None)]
    """
    if not num_sparse:
        return [ModelInput((num_dense,))]
    sparse = [
        ModelInput((), "int64", "indices", "entries"),
        ModelInput((), "int64", "offsets"),
        ModelInput((), "float32", "values", "entries"),
    ]
    return [*sparse, ModelInput((num_dense,), name="dense")] if num_dense else sparse


def parse_input(text: str) -> ModelInput:
    """Parse an input in the form that users write: an optional name, the sizes of one sample, and an optional dtype of torch. Raises
    InvalidArgumentError.

    >>> parse_input("1,28,28"), parse_input("tokens=128:int64")
    (ModelInput(shape=(1, 28, 28), dtype='float32', name=None), ModelInput(shape=(128,), dtype='int64', name='tokens'))
    >>> str(parse_input("1,28,28")), str(parse_input("tokens=128:int64"))
    ('1,28,28', 'tokens=128:int64')
    """
    match = _INPUT.fullmatch(text.replace(" ", ""))
    if match is None:
        raise InvalidArgumentError(
            f"{text!r} is not an input of a model; write the sizes of one sample, for example 1,28,28, or with name and dtype tokens=128:int64"
        )
    return ModelInput(tuple(map(int, match["shape"].split(","))), match["dtype"] or "float32", match["name"])


def input_names(inputs: Sequence[ModelInput]) -> list[str]:
    """Return the names of inputs. A single input without a name is `input`; several inputs are `input_0`, `input_1`, and so on."""
    return [given.name or ("input" if len(inputs) == 1 else f"input_{number}") for number, given in enumerate(inputs)]


def named_outputs(found: Any) -> dict[str, Any]:
    """Return the outputs of a model by name. One tensor is `output`; several tensors are `output_0`, `output_1`, and so on. A dictionary keeps its
    names.
    """
    if isinstance(found, Mapping):
        return {str(name): values for name, values in found.items()}
    if isinstance(found, tuple | list):
        return {f"output_{number}": values for number, values in enumerate(found)}
    return {"output": found}


@dataclass(frozen=True)
class TracedInputs:
    """Example calls of a model with batches of two and of three samples. A call has positional and named arguments."""

    two: tuple[tuple[Tensor, ...], dict[str, Tensor]]
    three: tuple[tuple[Tensor, ...], dict[str, Tensor]]
    shapes: Any
    """The dynamic dimensions of the export: the batch, and the sparse features."""

    @staticmethod
    def of(inputs: Sequence[ModelInput]) -> TracedInputs:
        """Make example calls for inputs. Raises InvalidArgumentError: there is no input, only some inputs have a name, or a dtype is unknown."""
        import torch

        named = {given.name for given in inputs if given.name is not None}
        if not inputs or len(named) not in (0, len(inputs)):
            raise InvalidArgumentError("give all inputs of a model by position, or give each a name")

        def batch(num_samples: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
            tensors = [_example(given, num_samples) for given in inputs]
            by_name = {str(given.name): tensor for given, tensor in zip(inputs, tensors, strict=True)}
            return ((), by_name) if named else (tuple(tensors), {})

        open_dims = [{0: torch.export.Dim(given.rows)} for given in inputs]
        shapes: Any = (
            {str(given.name): dims for given, dims in zip(inputs, open_dims, strict=True)} if named else tuple(open_dims)
        )
        return TracedInputs(batch(2), batch(3), shapes)


def export_program(model: nn.Module, inputs: Sequence[ModelInput], path: Path) -> None:
    """Write a model, which must be in evaluation mode, as a program for batches of any size. `torch.export.load` reads the file. The write is atomic.

    Before the function writes the program, it runs the program once and compares the values with the values of the model.

    Args: inputs: at least one; all by position, or all by name.
    Raises: InvalidArgumentError: the model does not take these inputs, or torch.export cannot follow the model's code. OSError: writing failed.
    """
    import torch

    from modyn.models.calls import plain_outputs

    traced = TracedInputs.of(inputs)
    three = traced.three
    try:
        with torch.no_grad():
            with plain_outputs(model):
                program = torch.export.export(model, *traced.two, dynamic_shapes=traced.shapes)
                expected: Any = model(*three[0], **three[1])
            torch.testing.assert_close(program.module()(*three[0], **three[1]), expected)
    except Exception as error:
        raise not_exported(model, inputs, "a program", error) from error
    with replacing(path, path.with_name(path.name + ".tmp")) as file:
        torch.export.save(program, file)


def not_exported(model: nn.Module, inputs: Sequence[ModelInput], what: str, error: Exception) -> InvalidArgumentError:
    """Make the error for a model that cannot be exported."""
    return InvalidArgumentError(
        f"{type(model).__name__} cannot be exported as {what} with inputs {' and '.join(map(str, inputs))}: {error}; check the inputs "
        f"(`{FEATURES}` means the features of the section `preprocessing`), or export its weights and build it by its class"
    )


def _example(given: ModelInput, num_samples: int) -> Tensor:
    import torch

    dtype = getattr(torch, given.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"torch has no dtype '{given.dtype}'; write for example float32 or int64")
    # The number of sparse features must differ from the number of samples. Otherwise torch would treat the two as one dimension.
    shape = (num_samples if given.rows == "batch" else 2 * num_samples + 1, *given.shape)
    # Whole numbers are often indices, and 0 is a valid index.
    return torch.randn(shape, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)
