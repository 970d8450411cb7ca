"""Models of tables and texts do what their papers and PyTorch say, and name the option that is wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from modyn.config.base import Severity
from modyn.errors import ConfigError
from modyn.models import check_model
from modyn.models.category_embeddings import ColumnEmbeddings
from modyn.models.weights import build_model
from modyn.trainer_server.check import check
from tests.support.column_samples import DENSE, SPARSE, column_pipeline
from tests.support.training import RecordedReport, small_pipeline

SMALL: dict[str, Any] = {"num_categories": [3, 4], "num_dense": 2, "num_classes": 2, "embedding_size": 4}
DLRM: dict[str, Any] = {**SMALL, "bottom_sizes": [5], "top_sizes": [6]}


@given(num_columns=st.integers(1, 5), size=st.integers(1, 4), num_rows=st.integers(0, 4), seed=st.integers(0, 99))
def test_interactions_are_the_products_of_all_pairs_of_vectors(num_columns: int, size: int, num_rows: int, seed: int) -> None:
    """The order is that of the authors' implementation: pairs i > j, by i, then j."""
    torch.manual_seed(seed)
    network: Any = build_model("DLRM", {**DLRM, "num_categories": [3] * num_columns, "embedding_size": size})
    bottom, vectors = torch.randn(num_rows, size), torch.randn(num_rows, num_columns, size)
    expected = torch.zeros(num_rows, num_columns * (num_columns + 1) // 2)
    for row in range(num_rows):
        every = [bottom[row], *vectors[row]]
        pairs = [(i, j) for i in range(len(every)) for j in range(i)]
        for place, (i, j) in enumerate(pairs):
            expected[row, place] = sum(float(every[i][k] * every[j][k]) for k in range(size))
    torch.testing.assert_close(network.interactions(bottom, vectors), expected)


def test_a_recommendation_model_is_that_of_the_paper() -> None:
    network: Any = build_model("DLRM", {**DLRM, "num_classes": 1})
    dense, categories = torch.randn(6, 2), torch.tensor([[0, 0], [2, 3], [1, 2], [-1, 7], [5, -3], [2, 0]])
    tables = network.embeddings.bags.weight.split([3, 4])
    bottom = dense
    for linear in (layer for layer in network.bottom_model if isinstance(layer, nn.Linear)):
        bottom = torch.relu(linear(bottom))
    first, second = (table[categories[:, at] % len(table)] for at, table in enumerate(tables))
    products = [(first * bottom).sum(1), (second * bottom).sum(1), (second * first).sum(1)]
    hidden, output = network.top_model
    expected = output(torch.relu(hidden[0](torch.cat([bottom, torch.stack(products, 1)], 1))))
    torch.testing.assert_close(network(dense, categories), expected)
    assert network.last_layer is output
    assert [tuple(layer.weight.shape) for layer in network.modules() if isinstance(layer, nn.Linear)] == [
        (5, 2), (4, 5), (6, 7), (1, 6)
    ]  # fmt: skip
    assert all(float(table.detach().abs().max()) <= len(table) ** -0.5 for table in tables)


@given(
    rows=st.lists(st.lists(st.tuples(st.integers(0, 8), st.floats(-2, 2, width=16)), max_size=6), max_size=5),
    sparse=st.booleans(),
)
def test_features_of_a_column_are_summed_by_their_values(rows: list[list[tuple[int, float]]], sparse: bool) -> None:
    """Rows may have several features of a column, or none. Gradients are those of the sums."""
    embeddings = ColumnEmbeddings([2, 4, 3], 3, sparse)
    ordered = [sorted(row, key=lambda entry: entry[0]) for row in rows]
    indices = torch.tensor([index for row in ordered for index, _ in row], dtype=torch.int64)
    values = torch.tensor([value for row in ordered for _, value in row], dtype=torch.float32)
    offsets = torch.tensor([sum(map(len, ordered[:at])) for at in range(len(ordered))], dtype=torch.int64)
    weight = embeddings.bags.weight.detach().clone().requires_grad_()
    sums = [
        sum((value * weight[index] for index, value in row if first <= index < last), torch.zeros(3))
        for row in ordered
        for first, last in ((0, 2), (2, 6), (6, 9))
    ]
    expected = torch.stack(sums).reshape(-1, 3, 3) if sums else torch.zeros(0, 3, 3)
    found = embeddings.of_features(indices, offsets, values)
    torch.testing.assert_close(found, expected)
    if not len(indices):
        return
    torch.autograd.backward([found.square().sum(), expected.square().sum()])
    gradient = embeddings.bags.weight.grad
    assert gradient is not None
    assert gradient.is_sparse == sparse
    torch.testing.assert_close(gradient.to_dense() if sparse else gradient, weight.grad)


@given(
    texts=st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=5),
    padding=st.sampled_from([0, 7]),
)
def test_a_text_is_the_mean_of_its_tokens_however_it_is_given(texts: list[list[int]], padding: int) -> None:
    config = {"vocabulary_size": 10, "num_classes": 3, "embedding_size": 4, "hidden_sizes": [], "padding_id": padding}
    network: Any = build_model("TextClassifier", config)
    bags = nn.EmbeddingBag.from_pretrained(network.tokens.weight.detach(), mode="mean", padding_idx=padding)
    tokens = torch.tensor([token for text in texts for token in text], dtype=torch.int64)
    offsets = torch.tensor([sum(map(len, texts[:at])) for at in range(len(texts))], dtype=torch.int64)
    expected = bags(tokens, offsets)
    length = max(1, *map(len, texts))
    padded = torch.tensor([text + [padding] * (length - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in texts])
    torch.testing.assert_close(network.embedding(tokens, offsets=offsets), expected)
    torch.testing.assert_close(network.embedding(padded), expected)
    noise = padded.masked_fill(mask == 0, 5)
    torch.testing.assert_close(network.embedding(noise, mask), expected)
    torch.testing.assert_close(network(input_ids=padded, attention_mask=mask), network.output(expected))


def test_models_learn_from_categories_and_from_numbers() -> None:
    torch.manual_seed(0)
    dense, categories = torch.randn(64, 2), torch.randint(4, (64, 2)).clamp(max=2)
    labels = ((dense[:, 0] > 0) ^ (categories[:, 1] == 1)).long()
    for id_, config in (("TabularMLP", {**SMALL, "hidden_sizes": [32]}), ("DLRM", {**DLRM, "sparse_gradients": True})):
        network = build_model(id_, config)
        optimizer = torch.optim.Adagrad(network.parameters(), lr=0.1)
        for _ in range(150):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(network(dense, categories), labels))
            with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]  # without a choice, PyTorch warns
                optimizer.step()
        assert (network(dense, categories).argmax(1) == labels).float().mean() > 0.9


def test_a_table_may_have_only_numbers_or_only_categories() -> None:
    numbers = build_model("TabularMLP", {"num_dense": 3, "num_classes": 2})
    assert numbers(torch.zeros(4, 3)).shape == (4, 2)
    categories = build_model("TabularMLP", {"num_categories": [3, 4], "num_classes": 2})
    assert categories(categories=torch.zeros(4, 2, dtype=torch.int64)).shape == (4, 2)
    assert categories(indices=torch.tensor([0, 4]), offsets=torch.tensor([0, 1])).shape == (2, 2)


def test_networks_of_wild_time_have_their_sizes() -> None:
    yearbook = build_model("YearbookNet", {})
    assert sum(parameter.numel() for parameter in yearbook.parameters()) == 28_386


@pytest.mark.skipif(find_spec("torchvision") is None, reason="`pip install modyn[vision]` installs it")
def test_the_network_of_fmow_is_densenet_121_of_torchvision() -> None:
    from modyn.models.torchvision_import import import_torchvision

    with torch.device("meta"):
        network, theirs = build_model("FmowNet", {"num_classes": 1000}), import_torchvision().models.densenet121()
    assert {name: value.shape for name, value in network.state_dict().items()} == {
        name: value.shape for name, value in theirs.state_dict().items()
    }
    assert sum(parameter.numel() for parameter in network.parameters()) == 7_978_856


def test_a_missing_package_is_named() -> None:
    """The test runs in a process that cannot import torchvision."""
    program = (
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *given: None if name == 'torchvision' else find(name, *given)\n"
        "from modyn.models import check_model\n"
        "print(*check_model('FmowNet', {}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "model.id: FmowNet needs torchvision, which is not installed here: pip install modyn[vision]" in done.stdout


IDS = torch.zeros(2, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("id_", "config", "inputs", "said"),
    [
        ("DLRM", DLRM, {"dense": torch.zeros(2, 3), "categories": IDS}, "num_dense: samples have 3 dense features, but the model takes 2"),
        ("TabularMLP", SMALL, {"categories": IDS}, "num_dense: samples have 0 dense features, but the model takes 2"),
        ("DLRM", DLRM, {"dense": torch.zeros(2, 2), "categories": IDS[:, :1]}, "samples have 1 columns of categories, but the model takes 2"),
        ("TabularMLP", SMALL, {"dense": torch.zeros(2, 2)}, "samples have 0 columns of categories, but the model takes 2"),
        (
            "TabularMLP",
            {"num_dense": 2, "num_classes": 2},
            {"dense": torch.zeros(2, 2), "indices": IDS[0], "offsets": IDS[0]},
            "num_categories: samples have sparse features, but the model takes 0 columns",
        ),
        (
            "TextClassifier",
            {"vocabulary_size": 9, "num_classes": 2},
            {"input_ids": IDS + 9},
            "vocabulary_size: a text has the token 9, but the model has 9 tokens",
        ),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit_name_the_option(id_: str, config: dict[str, Any], inputs: dict[str, Tensor], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.config\..*{said}"):
        build_model(id_, config)(**inputs)


@pytest.mark.parametrize(
    ("id_", "config", "path", "said"),
    [
        ("TabularMLP", {"num_classes": 2}, "model.config.num_dense", "set num_dense or num_categories"),
        ("TabularMLP", {**SMALL, "num_categories": [3, 0]}, "model.config.num_categories.1", "greater than or equal to 1"),
        ("DLRM", {"num_dense": 2, "num_categories": [], "num_classes": 2}, "model.config.num_categories", "at least 1"),
        ("DLRM", {**DLRM, "num_dense": 0}, "model.config.num_dense", "greater than or equal to 1"),
        (
            "TextClassifier",
            {"vocabulary_size": 9, "num_classes": 2, "padding_id": 9},
            "model.config.padding_id",
            "9 is not below",
        ),
    ],
)
def test_wrong_options_are_named(id_: str, config: dict[str, Any], path: str, said: str) -> None:
    (problem,) = check_model(id_, config)
    assert (problem.path, said in problem.message) == (path, True), problem


@pytest.mark.parametrize(
    ("section", "id_", "config", "path", "said"),
    [
        (SPARSE, "TabularMLP", SMALL, "model.config", "57 sparse and 2 dense features: write num_categories: [50, 7]"),
        (SPARSE, "DLRM", {**DLRM, "num_categories": [50, 7], "num_dense": 3}, "model.config", "dense features: write num_dense: 2"),
        (DENSE, "DLRM", DLRM, "model.id", "0 sparse and 3 dense features, which DLRM does not take (model.config.num_categories: "),
        (DENSE, "TextClassifier", {"vocabulary_size": 9, "num_classes": 2}, "model.id", "'TextClassifier' takes input_ids="),
    ],
)  # fmt: skip
def test_features_that_do_not_fit_are_said_before_a_run(
    section: dict[str, Any], id_: str, config: dict[str, Any], path: str, said: str
) -> None:
    found = check(column_pipeline(section, model={"id": id_, "config": config}), RecordedReport())
    assert any(problem.path == path and said in problem.message for problem in found), found


def optimizer(name: str, algorithm: str, *modules: str, **options: Any) -> dict[str, Any]:
    groups = [{"module": module, "config": {"lr": 0.1, **options}} for module in modules]
    return {"name": name, "algorithm": algorithm, "param_groups": groups}


SEVERAL = [
    optimizer("tables", "SparseAdam", "model.embeddings"),
    optimizer("dense", "Adam", "model.bottom_model", "model.top_model"),
]


@pytest.mark.parametrize(
    ("training", "path", "said"),
    [
        ({"optimizers": [optimizer("all", "SGD", "model")]}, None, ""),
        ({"optimizers": [optimizer("all", "SGD", "model", momentum=0.9)]}, None, ""),
        ({"optimizers": SEVERAL}, None, ""),
        (
            {"optimizers": [optimizer("all", "Adam", "model")]},
            "training.optimizers.0.param_groups.0",
            "Adam does not take the sparse gradients of model.embeddings.bags: ",
        ),
        (
            {"optimizers": [optimizer("all", "Adagrad", "model", weight_decay=0.1)]},
            "training.optimizers.0.param_groups.0",
            "weight_decay option is not compatible with sparse gradients",
        ),
        (
            {"optimizers": [optimizer("all", "SparseAdam", "model")]},
            "training.optimizers.0.param_groups.0",
            "SparseAdam takes only sparse gradients",
        ),
        ({"optimizers": SEVERAL, "gradient_clip_norm": 1.0}, "training.gradient_clip_norm", "does not clip the sparse gradients"),
    ],
)
def test_optimizers_that_refuse_sparse_gradients_are_said_before_a_run(
    training: dict[str, Any], path: str | None, said: str
) -> None:
    model = {"id": "DLRM", "config": {**DLRM, "sparse_gradients": True}}
    found = [problem for problem in check(small_pipeline(training, model=model), RecordedReport()) if problem.path != "data"]
    errors = [(problem.path, problem.message) for problem in found if problem.severity is Severity.ERROR]
    assert [each for each, _ in errors] == ([path] if path else [])
    assert all(said in message for _, message in errors), errors
