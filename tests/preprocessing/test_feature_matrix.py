"""Features are put side by side, and become tensors without copies."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import torch

from modyn.preprocessing.feature_matrix import Features
from tests.preprocessing.streams import batch, pipeline

COMPONENTS: list[dict[str, Any]] = [
    {"id": "Imputer"},
    {"id": "PolynomialFeatures", "columns": ["n0", "n1"]},
    {"id": "OneHotEncoder", "max_categories": 3},
    {"id": "TokenCounts", "method": "vocabulary", "num_features": 4},
]
ROWS = batch(n0=[1, 2, None], n1=[3, 4, 5], c=["a", None, "b"], t=["x y x", None, "z"])


def mixed() -> Features:
    return pipeline(*COMPONENTS, columns="n0 t c n1").update_and_transform(ROWS)


def test_all_kinds_side_by_side() -> None:
    found = mixed()
    assert found.dense.tolist() == [[1, 3, 1, 3, 9], [2, 4, 4, 8, 16], [1.5, 5, 2.25, 7.5, 25]]
    sparse = [[0, 2, 1, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 1, 0]]
    assert found.to_dense()[:, 5:].tolist() == sparse
    assert found.indptr.tolist() == [0, 3, 4, 6]
    assert found.rows(1, 3).to_dense().tolist() == found.to_dense()[1:].tolist()
    assert found.num_features == 14


def test_tensors_share_memory_and_give_the_sums_of_an_embedding_bag() -> None:
    found = mixed()
    tensors = found.to_torch()
    assert isinstance(tensors, dict)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "dense": found.dense,
        "indices": found.indices,
        "values": found.values,
        "offsets": found.indptr,
    }
    for name, array in arrays.items():
        assert tensors[name].data_ptr() == array.ctypes.data
    bag = torch.nn.EmbeddingBag(found.num_sparse, 2, mode="sum")
    sums = bag(tensors["indices"], tensors["offsets"], per_sample_weights=tensors["values"])
    expected = found.to_dense()[:, 5:] @ bag.weight.detach().numpy()
    np.testing.assert_allclose(sums.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_dense_features_alone_are_one_tensor_and_sparse_alone_have_no_dense() -> None:
    dense = pipeline().transform(batch(n=[1, 2])).to_torch()
    assert isinstance(dense, torch.Tensor)
    assert dense.tolist() == [[1], [2]]
    sparse = pipeline({"id": "OneHotEncoder"}, columns="c").transform(batch(c=["x"])).to_torch()
    assert isinstance(sparse, dict)
    assert set(sparse) == {"indices", "offsets", "values"}


def test_preprocessing_imports_no_torch() -> None:
    program = (
        "import sys; from modyn.preprocessing import COMPONENTS; [COMPONENTS.get(name) for name in COMPONENTS]; "
        "print([m for m in ('torch', 'pandas', 'sklearn', 'grpc', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
