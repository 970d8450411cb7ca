"""Embeddings of columns of categories, and the inputs of networks over numbers and categories."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from modyn.errors import ConfigError
from modyn.models.specs import ColumnConfig


class ColumnEmbeddings(nn.Module):
    """A table of embeddings for each column of categories. The tables are parts of one matrix, so that one lookup serves all columns.

    New embeddings are uniform in ±1/√n for a table of n rows (Naumov et al.: Deep Learning Recommendation Model, 2019).
    """

    sizes: Tensor
    """Rows of each table, int64 (columns,)."""
    firsts: Tensor
    """First row of each table in the matrix, int64 (columns,)."""

    def __init__(self, num_categories: Sequence[int], size: int, sparse_gradients: bool) -> None:
        """Args: num_categories: rows of each table. size: width of an embedding. sparse_gradients: whether gradients have only the rows in use."""
        super().__init__()
        self.num_columns, self._sparse = len(num_categories), sparse_gradients
        weight = torch.empty(sum(num_categories), size)
        for rows in torch.split(weight, list(num_categories)):
            nn.init.uniform_(rows, -(len(rows) ** -0.5), len(rows) ** -0.5)
        self.bags = nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", sparse=sparse_gradients)
        sizes = torch.tensor(num_categories)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("firsts", sizes.cumsum(0) - sizes, persistent=False)

    def forward(self, categories: Tensor) -> Tensor:
        """categories: whole numbers (batch, columns) → (batch, columns, size). Numbers outside of a table are taken modulo its rows."""
        rows = categories.remainder(self.sizes) + self.firsts
        return functional.embedding(rows, self.bags.weight, sparse=self._sparse)

    def of_features(self, indices: Tensor, offsets: Tensor, values: Tensor | None) -> Tensor:
        """Features as `modyn.preprocessing.Features` has them, by row and column → (batch, columns, size): the sums of value × embedding."""
        ones = torch.ones_like(offsets)
        # The additional last element counts rows without features at the end.
        begun = torch.cat([torch.zeros_like(indices), ones[:1]]).index_add(0, offsets, ones).cumsum(0)[:-1]
        columns = (indices.unsqueeze(1) >= self.firsts).sum(1)
        bags = (begun - 1) * self.num_columns + columns - 1
        counts = torch.zeros_like(offsets).repeat(self.num_columns).index_add(0, bags, torch.ones_like(indices))
        sums: Tensor = self.bags(indices, counts.cumsum(0) - counts, per_sample_weights=values)
        return sums.reshape(-1, self.num_columns, sums.shape[1])


class ColumnNetwork(nn.Module):
    """A network over numbers and categories of a sample. `embeddings`: tables of the columns of categories; None without such columns.

    The inputs are `dense`, float (batch, num_dense), and `categories`, whole numbers (batch, columns); or `dense`, and `indices`, `offsets` and
    `values` of the section `preprocessing`.
    """

    output: nn.Linear

    def __init__(self, config: ColumnConfig) -> None:
        super().__init__()
        self._num_dense = config.num_dense
        self.embeddings = (
            ColumnEmbeddings(config.num_categories, config.embedding_size, config.sparse_gradients)
            if config.num_categories
            else None
        )

    @property
    def last_layer(self) -> nn.Linear:
        """Return the layer that turns an embedding into logits."""
        return self.output

    def combined(self, dense: Tensor | None, vectors: Tensor | None) -> Tensor:
        """dense (batch, num_dense), vectors (batch, columns, embedding_size) → (batch, inputs of the last layer)."""
        raise NotImplementedError

    def embedding(
        self,
        dense: Tensor | None = None,
        categories: Tensor | None = None,
        indices: Tensor | None = None,
        offsets: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        """Inputs of the class → (batch, inputs of the last layer). Raises ConfigError: the inputs contradict the model's options."""
        given = 0 if dense is None else dense.shape[1]
        if given != self._num_dense:
            raise ConfigError(
                f"model.config.num_dense: samples have {given} dense features, but the model takes {self._num_dense}; set it to {given}"
            )
        return self.combined(dense, self._vectors(categories, indices, offsets, values))

    def forward(
        self,
        dense: Tensor | None = None,
        categories: Tensor | None = None,
        indices: Tensor | None = None,
        offsets: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        """Inputs of the class → logits (batch, num_classes). Raises: see `embedding`."""
        logits: Tensor = self.last_layer(self.embedding(dense, categories, indices, offsets, values))
        return logits

    def _vectors(
        self, categories: Tensor | None, indices: Tensor | None, offsets: Tensor | None, values: Tensor | None
    ) -> Tensor | None:
        if indices is not None and offsets is not None and self.embeddings is not None:
            return self.embeddings.of_features(indices, offsets, values)
        given = 0 if categories is None else categories.shape[1]
        taken = 0 if self.embeddings is None else self.embeddings.num_columns
        if indices is not None or given != taken:
            columns = "sparse features" if indices is not None else f"{given} columns of categories"
            raise ConfigError(
                f"model.config.num_categories: samples have {columns}, but the model takes {taken} columns; write the number of categories of each "
                "column of a sample"
            )
        if self.embeddings is None:
            return None
        vectors: Tensor = self.embeddings(categories)
        return vectors
