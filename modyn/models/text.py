"""Network of TextClassifier."""

from __future__ import annotations

from torch import Tensor, nn

from modyn.errors import ConfigError
from modyn.models.networks import perceptron
from modyn.models.specs import TextClassifierConfig


class TextClassifierNetwork(nn.Module):
    """`tokens`: the mean of the embeddings of the tokens; `hidden`: linear layers with ReLU and dropout; `output`: the last linear layer."""

    def __init__(self, config: TextClassifierConfig) -> None:
        super().__init__()
        size, self._padding = config.embedding_size, config.padding_id
        self.tokens = nn.EmbeddingBag(config.vocabulary_size, size, mode="mean", padding_idx=config.padding_id)
        self.hidden = perceptron((size, *config.hidden_sizes), config.dropout)
        self.output = nn.Linear((size, *config.hidden_sizes)[-1], config.num_classes)

    @property
    def last_layer(self) -> nn.Linear:
        """Return the layer that turns an embedding into logits."""
        return self.output

    def embedding(self, input_ids: Tensor, attention_mask: Tensor | None = None, offsets: Tensor | None = None) -> Tensor:
        """Inputs of `forward` → (batch, inputs of the last layer)."""
        if attention_mask is not None:
            input_ids = input_ids.masked_fill(attention_mask == 0, self._padding)
        try:
            means = self.tokens(input_ids, offsets)
        except (IndexError, RuntimeError) as error:
            raise self._unknown_token(input_ids, error) from error
        found: Tensor = self.hidden(means)
        return found

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, offsets: Tensor | None = None) -> Tensor:
        """Logits (batch, num_classes) of texts. A text without tokens has the mean 0.

        Args: input_ids: int64 (batch, k), where tokens of `padding_id` do not count; or, with `offsets`, the tokens of all texts, int64 (m,).
        attention_mask: 0 for tokens that do not count, of the same shape. offsets: first token of each text, int64 (batch,).
        """
        logits: Tensor = self.output(self.embedding(input_ids, attention_mask, offsets))
        return logits

    def _unknown_token(self, input_ids: Tensor, error: Exception) -> Exception:
        """Explain an error of the lookup: a token may be outside of the vocabulary."""
        size = self.tokens.num_embeddings
        outside = input_ids[(input_ids < 0) | (input_ids >= size)]
        if not len(outside):
            return error
        return ConfigError(
            f"model.config.vocabulary_size: a text has the token {int(outside[0])}, but the model has {size:,} tokens (0 to {size - 1}); write the "
            "size of the tokenizer's vocabulary"
        )
