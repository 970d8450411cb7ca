"""The one way to call a model: `forward`, `embedding`, `last_layer`, and `score`, the one pass that scores samples without training.

Training, evaluation and scoring all call models through this file. A model takes one tensor, several by position (a tuple) or several by
name (a dictionary). It may offer `embedding(data)` and a property `last_layer`; where it offers none, its last `nn.Linear` and the input of
that layer are taken. Imports torch: for workers only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from modyn.errors import ConfigError

Data = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""A batch of model inputs: one tensor (n, …), or several by position or by name."""

_ONE: Final = "is one tensor of shape (n, d) a batch"

SampleLoss = Callable[[Any, Tensor], Tensor]
"""(model output, labels) → one loss a sample, (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What one pass gives of n samples, on the model's device, detached; not in half precision."""

    losses: Tensor
    """(n,)"""
    logits: Tensor
    """(n, c): what the last layer returns."""
    embeddings: Tensor
    """(n, d): what the last layer is given."""
    logit_gradients: Tensor
    """(n, c): the derivative of each sample's loss by its logits."""

    def last_layer_gradients(self) -> tuple[Tensor, Tensor]:
        """The gradient of each sample's loss by the last layer's weight, (n, c, d), and by its bias, (n, c), in closed form: since
        logits = W e + b, they are g eᵀ and g, with g the derivative by the logits (Katharopoulos and Fleuret: Not All Samples Are Created
        Equal, 2018, section 3.2, for this layer exact)."""
        return self.logit_gradients.unsqueeze(2) * self.embeddings.unsqueeze(1), self.logit_gradients


def forward(model: Callable[..., Any], data: Data) -> Any:
    """The model's output for a batch; a tuple of inputs is passed by position, a dictionary by name."""
    if isinstance(data, tuple):
        return model(*data)
    return model(**data) if isinstance(data, dict) else model(data)


def last_layer(model: nn.Module) -> nn.Linear:
    """The layer that turns embeddings into logits: what the model calls `last_layer`, else its last nn.Linear in the order of definition.

    Raises: ConfigError: there is none.
    """
    offered = getattr(model, "last_layer", None)
    if offered is not None and not isinstance(offered, nn.Linear):
        raise ConfigError(f"model.id: `last_layer` of {type(model).__name__} is a {type(offered).__name__}, not an nn.Linear")
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if offered is None and not found:
        raise ConfigError(
            f"model.id: {type(model).__name__} has no last layer, since it has no nn.Linear: let it end in one, or choose what needs no "
            "gradients by its last layer"
        )
    return found[-1] if offered is None else offered


def has_last_layer(model: nn.Module) -> bool:
    """Whether the model has a last layer, by its own word or as an nn.Linear."""
    return getattr(model, "last_layer", None) is not None or any(isinstance(module, nn.Linear) for module in model.modules())


def num_logits(model: nn.Module) -> int | None:
    """Outputs of the `last_layer` that the model offers; None: it offers none, and its last nn.Linear may be followed by others."""
    offered = getattr(model, "last_layer", None)
    return offered.out_features if isinstance(offered, nn.Linear) else None


def offers_embedding(model: nn.Module) -> bool:
    """Whether the model has an `embedding(data)` of its own. A module of this name is a table of vectors."""
    offered = getattr(model, "embedding", None)
    return callable(offered) and not isinstance(offered, nn.Module)


def has_embedding(model: nn.Module) -> bool:
    """Whether `embedding` finds one, of the model's own or as the input of its last layer."""
    return offers_embedding(model) or has_last_layer(model)


def embedding(model: nn.Module, data: Data) -> Tensor:
    """The embedding of each sample of the batch, (n, d), by `model.embedding` or else as the input of its last layer. In the mode, and with
    the gradients, that the caller has set. Raises ConfigError: the model has neither."""
    if offers_embedding(model):
        found: Tensor = forward(model.embedding, data)  # type: ignore[arg-type]
        return found
    if not has_last_layer(model):
        raise ConfigError(
            f"model.id: {type(model).__name__} has no embedding: it has no nn.Linear, and offers no `embedding(data)`; add that, or choose what "
            "needs no embedding"
        )
    given: list[Tensor] = []
    with _hooked(last_layer(model).register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))):
        forward(model, data)
    return _only(model, given, "was given", f"an embedding {_ONE}: let the model offer `embedding(data)`, which returns that")


def logits(model: nn.Module, data: Data) -> Tensor:
    """What the last layer returns for each sample of the batch, (n, c), or the model itself where it has no last layer. In the mode, and with
    the gradients, that the caller has set.

    Raises: ConfigError: that is not one tensor of such a shape.
    """
    advice = f"logits are what it returns where that {_ONE}: let the model offer a `last_layer` that is called so"
    if not has_last_layer(model):
        output = forward(model, data)
        return _only(model, [output] if isinstance(output, Tensor) else [], "returned", advice)
    returned: list[Tensor] = []
    with _hooked(last_layer(model).register_forward_hook(lambda _, inputs, output: returned.append(output))):
        forward(model, data)
    return _only(model, returned, "returned", advice)


def score(model: nn.Module, data: Data, labels: Tensor, loss: SampleLoss) -> Scores:
    """Loss, logits, embedding and the derivative of the loss by the logits, of each sample of a batch, by one forward pass.

    The model is in evaluation mode meanwhile and no gradient passes through it: parameters, their gradients, the statistics of
    BatchNorm, the mode of each module and the random generators are as they were afterwards. What comes behind the last layer, such as a
    softmax, counts as part of the loss. Raises ConfigError: the model has no last layer, or calls it in another way than once a batch.

    Args: labels: (n, …), as `loss` takes them.
    """
    with unchanged(model):
        return score_in_mode(model, data, labels, loss)


def score_in_mode(model: nn.Module, data: Data, labels: Tensor, loss: SampleLoss) -> Scores:
    """As `score`, in the mode that the caller has set, and random generators go on: around many batches, `unchanged` is needed once."""
    layer = last_layer(model)
    given: list[Tensor] = []
    returned: list[Tensor] = []

    def from_here_on(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        given.append(inputs[0])
        returned.append(_wide(output.detach()).requires_grad_())  # in half precision, small gradients would become 0
        torch.set_grad_enabled(True)  # of the few operations behind the logits; ends with the block below
        return returned[-1]

    with torch.no_grad(), _hooked(layer.register_forward_hook(from_here_on)):
        output = forward(model, data)
        advice = f"gradients by it need one call, with what {_ONE}: let the model offer such a `last_layer`, or choose what needs no gradients by it"
        embeddings = _only(model, given, "was given", advice)
        losses = loss(output, labels)
        (gradients,) = torch.autograd.grad(losses.sum(), returned)
    return Scores(_wide(losses.detach()), returned[0].detach(), _wide(embeddings.detach()), gradients)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _only(model: nn.Module, found: list[Tensor], did: str, advice: str) -> Tensor:
    """The one tensor that the last layer was given, or returned. Args: did, advice: for the message where it is another number or shape."""
    if len(found) == 1 and found[0].dim() == 2:
        return found[0]
    shapes = ", ".join(str(list(tensor.shape)) for tensor in found) or "nothing"
    raise ConfigError(f"model.id: the last layer of {type(model).__name__} {did} {shapes}; {advice}")


@contextmanager
def _hooked(handle: torch.utils.hooks.RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def gpus_of(model: nn.Module) -> list[int]:
    """The numbers of the GPUs that parameters of the model are on."""
    return sorted({parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"})


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards each module's own mode and all random generators are as before."""
    trained = [module for module in model.modules() if module.training]
    generators = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(gpus_of(model)):
        model.eval()
        try:
            yield
        finally:
            for module in trained:
                module.training = True
            random.setstate(generators[0])
            np.random.set_state(generators[1])
