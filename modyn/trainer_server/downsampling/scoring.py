"""What policies may ask of the present model about a batch. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch, map_tensors
from modyn.errors import ConfigError, UserCodeError
from modyn.models.calls import Scores, embedding, forward, gpus_of, score_in_mode, unchanged
from modyn.trainer_server.downsampling.sampling import NO_CLASS

_GRADIENT_BYTES: Final = 2**28
"""Gradients of samples that are in memory at once."""
_DRAWS: Final = 4
"""Draws of a model over which a pass takes the mean of its scores: a single one makes weights uneven by chance."""


class SampleCriterion(Protocol):
    """A loss that can be taken sample by sample: see `modyn.trainer_server.criterion`."""

    def per_sample(self, output: Any, labels: Tensor) -> Tensor:
        """The loss of each sample, (n,)."""

    def counts(self, labels: Tensor) -> Tensor:
        """What each sample adds to the number that the sum of losses is divided by, float32 (n,)."""

    def classes(self, labels: Tensor) -> Tensor | None:
        """The class of each sample, int64 (n,); None: there are none."""

    def probabilities(self, output: Tensor) -> Tensor:
        """The probabilities of classes, (n, c). Raises ConfigError."""


class ScoringModel:
    """The model that is being trained, under the loss that it is trained with: in evaluation mode unless `scoring` says otherwise, in the precision
    of the training, without gradients. Each call is one pass; parameters, gradients, statistics of BatchNorm and random generators are as before
    afterwards.

    All results are float32, in the order of the batch, and do not depend on its other samples.
    """

    def __init__(self, model: nn.Module, criterion: SampleCriterion, amp_dtype: torch.dtype | None = None) -> None:
        """Args: amp_dtype: data type of mixed precision; None: there is none."""
        self.network = model
        """The model that is asked."""
        self._criterion = criterion
        self._amp_dtype = amp_dtype
        self._gpus: list[int] | None = None
        """Those of the model, inside `scoring`."""
        self._draws = False
        """Whether modules may draw, as dropout does, inside `scoring`."""
        self._draw = 0
        """Number of the draw."""
        self._varies: bool | None = None
        """Whether two draws differ; None: that was not looked at yet."""

    @contextmanager
    def scoring(self, *, as_trained: bool = False) -> Iterator[None]:
        """Set the model to be scored with; afterwards all is as before. Around any number of calls, which then need not do so each.

        Args: as_trained: in the mode of training, where that keeps nothing: dropout draws, BatchNorm and other modules with buffers do not change.
        """
        drawing = [module for module in self.network.modules() if module.training and not module._buffers] if as_trained else []
        with torch.no_grad(), unchanged(self.network):
            for module in drawing:
                module.training = True
            self._gpus, self._draws, self._varies = gpus_of(self.network), as_trained, None if as_trained else False
            try:
                yield
            finally:
                self._gpus, self._draws = None, False

    def mean_over_draws(self, score: Callable[[], Tensor]) -> Tensor:
        """The mean of what `score` returns over `_DRAWS` draws of the model; of one, where it draws nothing. To be called inside `scoring`.

        Whether it does is found at the first call, which waits for the device.
        """
        total = score()
        for number in range(1, 1 if self._varies is False else _DRAWS):
            self._draw = number
            another = score()
            if self._varies is None:
                self._varies = not torch.allclose(total, another, equal_nan=True)
            if not self._varies:
                break
            total = total + another
        self._draw = 0
        return total / _DRAWS if self._varies else total

    def _unchanged(self) -> AbstractContextManager[None]:
        """What a call needs. Inside `scoring`, only PyTorch's generators are set back: what a model draws does not depend on the calls before, and
        a pass that goes on finds the same."""
        if self._gpus is None:
            return unchanged(self.network)
        return _drawing_apart(self._gpus, self._draw) if self._draws else torch.random.fork_rng(self._gpus)

    def outputs(self, batch: Batch) -> Any:
        """What the model returns."""
        with torch.no_grad(), self._unchanged(), self._precision(batch):
            return forward(self.network, batch.data)

    def losses(self, batch: Batch) -> Tensor:
        """The loss of each sample, (n,): what it adds to the sum that the loss of a batch is the mean of."""
        output = self.outputs(batch)
        with torch.no_grad(), self._precision(batch):
            return self._criterion.per_sample(output, batch.labels).float()

    def probabilities(self, batch: Batch) -> Tensor:
        """The probabilities of the classes, (n, c); of one logit those of two classes, (n, 2). Raises ConfigError: the loss has none."""
        return self._criterion.probabilities(self.outputs(batch))

    def probability_errors(self, batch: Batch) -> Tensor:
        """The probabilities of the classes less those of the label, (n, c). Raises ConfigError: the loss has none."""
        probabilities, labels = self.probabilities(batch), batch.labels
        if not labels.is_floating_point():
            # An ignored label may be any number; `DownsamplingPolicy.scored` gives its sample 0.
            classes = labels.where(self.counts(batch) > 0, 0)
            return probabilities - torch.nn.functional.one_hot(classes, probabilities.shape[1])
        return probabilities - (
            labels if labels.shape == probabilities.shape else torch.stack((1 - labels.reshape(-1), labels.reshape(-1)), 1)
        )

    def last_layer(self, batch: Batch) -> Scores:
        """Losses, logits, embeddings and the derivatives by the logits. Raises ConfigError: the model has no last layer."""
        with self._unchanged(), self._precision(batch):
            return score_in_mode(self.network, batch.data, batch.labels, self._criterion.per_sample)

    def embeddings(self, batch: Batch) -> Tensor:
        """The embeddings, (n, d): the model's own where it offers `embedding(data)`, else the input of its last layer.

        Raises: ConfigError: it has none. UserCodeError: its own are not one row a sample.
        """
        with torch.no_grad(), self._unchanged(), self._precision(batch):
            found = embedding(self.network, batch.data)
        if not isinstance(found, Tensor) or found.shape[:1] != (len(batch),):
            raise UserCodeError(f"`embedding` of {type(self.network).__name__} must return one tensor with a row a sample")
        return found.float().flatten(1) if found.dim() > 1 else found.float().unsqueeze(1)

    def gradient_norms(self, batch: Batch) -> Tensor:
        """The norm of the gradient of each sample's loss by all parameters that are trained, (n,), by torch.func.

        Raises: ConfigError: the model cannot be differentiated sample by sample, such as one with an nn.GRU.
        """
        trained = {name: value.detach() for name, value in self.network.named_parameters() if value.requires_grad}
        fixed = {name: value.detach() for name, value in self.network.named_parameters() if not value.requires_grad}
        fixed |= {name: value.detach() for name, value in self.network.named_buffers()}

        def loss(parameters: dict[str, Tensor], data: Any, label: Tensor) -> Tensor:
            one = map_tensors(data, lambda tensor: tensor.unsqueeze(0))
            output = torch.func.functional_call(self.network, {**parameters, **fixed}, *_arguments(one))
            return self._criterion.per_sample(output, label.unsqueeze(0)).sum()

        def norm(data: Any, label: Tensor) -> Tensor:
            gradients = torch.func.grad(loss)(trained, data, label)
            return torch.stack([gradient.float().square().sum() for gradient in gradients.values()]).sum().sqrt()

        at_once = max(1, _GRADIENT_BYTES // max(1, 4 * sum(value.numel() for value in trained.values())))
        norms: Callable[..., Tensor] = torch.func.vmap(norm, chunk_size=at_once)
        try:
            with self._unchanged(), self._precision(batch), _plain_attention():
                return norms(batch.data, batch.labels).detach()
        except RuntimeError as error:
            self.losses(batch)  # What the model or the loss refuses without torch.func too is raised as it is.
            raise ConfigError(
                f"model.id: the gradients of {type(self.network).__name__} by all parameters cannot be taken sample by sample: set parameters: "
                f"LastLayer, or choose GradNorm. PyTorch: {error}"
            ) from error

    def has_classes(self, batch: Batch) -> bool:
        """Whether labels are classes, one a sample, though some may be ignored."""
        return self._criterion.classes(batch.labels) is not None

    def classes(self, batch: Batch) -> Tensor:
        """The class of each sample's label, int64 (n,); NO_CLASS where labels are no classes, or the label is ignored."""
        return self.classes_and_counts(batch)[0]

    def classes_and_counts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What `classes` and `counts` return."""
        found, counts = self._criterion.classes(batch.labels), self.counts(batch)
        if found is None:
            return batch.labels.new_full((len(batch),), NO_CLASS, dtype=torch.int64), counts
        return found.where(counts > 0, NO_CLASS), counts

    def counts(self, batch: Batch) -> Tensor:
        """What each sample adds to the number that the sum of losses is divided by, float32 (n,); 0: its label is ignored."""
        return self._criterion.counts(batch.labels)

    def _precision(self, batch: Batch) -> Any:
        return nullcontext() if self._amp_dtype is None else torch.autocast(batch.labels.device.type, self._amp_dtype)


@contextmanager
def _drawing_apart(gpus: list[int], number: int) -> Iterator[None]:
    """Draw other numbers inside the block than after it, by the state of the generators alone: a choice must not depend on what a step will draw."""
    with torch.random.fork_rng(gpus):
        seed = int(torch.randint(2**62, ())) + number
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention made of single operations inside the block: torch.func cannot map the fused ones that evaluation mode takes with a padding mask."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _arguments(data: Any) -> tuple[Any, Any]:
    """As torch.func.functional_call takes them: by position and by name."""
    if isinstance(data, dict):
        return (), data
    return (data if isinstance(data, tuple) else (data,)), {}
