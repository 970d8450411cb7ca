"""Calls of models: `forward`, `embedding`, `last_layer`, and `score`, which scores samples in one pass without training.

Training, evaluation and scoring call models only through this module. A model takes one tensor, several by position (a tuple) or several by name (a
dictionary). If a model returns an object with logits, as models of transformers do, the logits count as its output. A model may offer
`embedding(data)` and a property `last_layer`, or `get_classifier()` as models of timm do. Without these members, Modyn uses the last `nn.Linear` of
the model as last layer, and its input as embedding. Only workers import this module, because it imports torch.
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

_ONE: Final = "must be one tensor of shape (n, d) for each batch"

SampleLoss = Callable[[Any, Tensor], Tensor]
"""Function of model output and labels that returns the loss of each sample, (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Results of one pass for n samples, on the model's device, detached, and not in half precision."""

    losses: Tensor
    """(n,)"""
    logits: Tensor
    """(n, c): output of the last layer."""
    embeddings: Tensor
    """(n, d): input of the last layer."""
    logit_gradients: Tensor
    """(n, c): derivative of each sample's loss with respect to its logits."""

    def last_layer_gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of each sample's loss with respect to weight, (n, c, d), and bias, (n, c), of the last layer. The closed form is
        exact: because logits = W e + b, the gradients are g eᵀ and g, where g is the derivative with respect to the logits (Katharopoulos and
        Fleuret: Not All Samples Are Created Equal, 2018, section 3.2)."""
        return self.logit_gradients.unsqueeze(2) * self.embeddings.unsqueeze(1), self.logit_gradients


def forward(model: Callable[..., Any], data: Data) -> Any:
    """Return the model's output for a batch. A tuple of inputs is passed by position, a dictionary by name."""
    if isinstance(data, tuple):
        return plain_output(model(*data))
    return plain_output(model(**data) if isinstance(data, dict) else model(data))


def plain_output(output: Any) -> Any:
    """Return the logits of an output that is an object with `logits`; otherwise the output itself."""
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else output


@contextmanager
def plain_outputs(model: nn.Module) -> Iterator[None]:
    """Make a model itself return its logits within a `with` block, for exports."""
    with _hook(model.register_forward_hook(lambda _, inputs, output: plain_output(output))):
        yield


def offered_last_layer(model: nn.Module) -> Any:
    """Return the layer that the model itself names: its `last_layer`, or the result of its `get_classifier()`; None: it names none."""
    if (offered := getattr(model, "last_layer", None)) is not None:
        return offered
    classifier = getattr(model, "get_classifier", None)
    found = classifier() if callable(classifier) else None
    return found if isinstance(found, nn.Linear) else None


def last_layer(model: nn.Module) -> nn.Linear:
    """Return the layer that turns embeddings into logits: the model's `last_layer`. Without this property, return the last nn.Linear in the order of
    definition. Raises ConfigError: the model has no nn.Linear.
    """
    offered = offered_last_layer(model)
    if offered is not None and not isinstance(offered, nn.Linear):
        raise ConfigError(f"model.id: `last_layer` of {type(model).__name__} is a {type(offered).__name__}, not an nn.Linear")
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if offered is None and not found:
        raise ConfigError(
            f"model.id: {type(model).__name__} has no last layer, because it has no nn.Linear: add one at its end, or choose a policy that needs no "
            "gradients of the last layer"
        )
    return found[-1] if offered is None else offered


def has_last_layer(model: nn.Module) -> bool:
    """Return whether the model has a last layer: its own `last_layer`, or an nn.Linear."""
    return offered_last_layer(model) is not None or any(isinstance(module, nn.Linear) for module in model.modules())


def num_logits(model: nn.Module) -> int | None:
    """Return the number of outputs of the layer that the model names as its last layer. None: the model names none; then other layers may follow the
    last nn.Linear.
    """
    offered = offered_last_layer(model)
    return offered.out_features if isinstance(offered, nn.Linear) else None


def offers_embedding(model: nn.Module) -> bool:
    """Return whether the model has its own method `embedding(data)`. A submodule with this name does not count, because such a submodule is a table
    of vectors.
    """
    offered = getattr(model, "embedding", None)
    return callable(offered) and not isinstance(offered, nn.Module)


def has_embedding(model: nn.Module) -> bool:
    """Return whether the model has a method `embedding` or a last layer, so that `embedding` works."""
    return offers_embedding(model) or has_last_layer(model)


def embedding(model: nn.Module, data: Data) -> Tensor:
    """Return the embedding of each sample of the batch, (n, d): the result of `model.embedding`. Without this method, return the input of the last
    layer. The caller sets mode and gradients. Raises ConfigError: the model has no last layer and no such method."""
    if offers_embedding(model):
        found: Tensor = forward(model.embedding, data)  # type: ignore[arg-type]
        return found
    if not has_last_layer(model):
        raise ConfigError(
            f"model.id: {type(model).__name__} has no embedding: it has no nn.Linear, and no method `embedding(data)`; add one, or choose a policy "
            "that needs no embedding"
        )
    given: list[Tensor] = []
    with _hook(last_layer(model).register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))):
        forward(model, data)
    return _only(
        model, given, "was given", f"an embedding {_ONE}: add a method `embedding(data)` to the model that returns such a tensor"
    )


def logits(model: nn.Module, data: Data) -> Tensor:
    """Return the logits of each sample of the batch, (n, c): the output of the last layer, or of the model if it has no last layer. The caller sets
    mode and gradients.

    Raises: ConfigError: the output is not one tensor of this shape.
    """
    advice = f"logits are the output of this layer, which {_ONE}: add a property `last_layer` to the model, for a layer that is called so"
    if not has_last_layer(model):
        output = forward(model, data)
        return _only(model, [output] if isinstance(output, Tensor) else [], "returned", advice)
    returned: list[Tensor] = []
    with _hook(last_layer(model).register_forward_hook(lambda _, inputs, output: returned.append(output))):
        forward(model, data)
    return _only(model, returned, "returned", advice)


def score(model: nn.Module, data: Data, labels: Tensor, loss: SampleLoss) -> Scores:
    """Return loss, logits, embedding, and derivative of the loss with respect to the logits for each sample of a batch, with one forward pass.

    The pass is in evaluation mode, and no gradient passes through the model. Parameters, their gradients, the statistics of BatchNorm, the mode of
    each module and the random generators are unchanged afterwards. Operations after the last layer, such as a softmax, count as part of the loss.
    Raises ConfigError: the model has no last layer, or does not call this layer exactly once for each batch.

    Args: labels: (n, …), in the form that `loss` takes.
    """
    with unchanged(model):
        return score_in_mode(model, data, labels, loss)


def score_in_mode(model: nn.Module, data: Data, labels: Tensor, loss: SampleLoss) -> Scores:
    """Do the same as `score`, but in the mode that the caller has set, and without restoring random generators. For many batches, put all calls into
    one block of `unchanged`.
    """
    layer = last_layer(model)
    given: list[Tensor] = []
    returned: list[Tensor] = []

    def from_here_on(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        given.append(inputs[0])
        returned.append(_wide(output.detach()).requires_grad_())  # In half precision, small gradients would become 0.
        torch.set_grad_enabled(True)  # Only operations after the logits need gradients. `no_grad` below restores the mode.
        return returned[-1]

    with torch.no_grad(), _hook(layer.register_forward_hook(from_here_on)):
        output = forward(model, data)
        advice = f"its gradients need one call, whose input {_ONE}: add such a property `last_layer`, or choose a policy without these gradients"
        embeddings = _only(model, given, "was given", advice)
        losses = loss(output, labels)
        (gradients,) = torch.autograd.grad(losses.sum(), returned)
    return Scores(_wide(losses.detach()), returned[0].detach(), _wide(embeddings.detach()), gradients)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _only(model: nn.Module, found: list[Tensor], did: str, advice: str) -> Tensor:
    """Return the only tensor of `found`, the inputs or outputs of the last layer. Args: did, advice: parts of the error message if there is not
    exactly one tensor (n, d)."""
    if len(found) == 1 and found[0].dim() == 2:
        return found[0]
    shapes = ", ".join(str(list(tensor.shape)) for tensor in found) or "nothing"
    raise ConfigError(f"model.id: the last layer of {type(model).__name__} {did} {shapes}; {advice}")


@contextmanager
def _hook(handle: torch.utils.hooks.RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def gpus_of(model: nn.Module) -> list[int]:
    """Return the numbers of the GPUs that hold parameters of the model."""
    return sorted({parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"})


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode within a `with` block. Afterwards, restore the mode of each module and all random generators."""
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
