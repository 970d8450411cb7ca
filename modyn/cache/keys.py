"""Keys of cached samples. Two keys are equal only for the same sample, prepared by the same code."""

from __future__ import annotations

import hashlib
import json
from typing import Final, Literal

from modyn.records import Int64Array

TierName = Literal["encoded", "decoded", "augmented"]

CODEC_VERSION: Final = 3
"""Version of the buffers that `sample_codec.py` writes. Every change of the format increments this number."""
NAMESPACE_BYTES: Final = 12
"""Size of a namespace in bytes. With this size, one collision is expected among 2^48 namespaces."""


def namespace(dataset_identity: str, deletion_epoch: int, decoding: str, tier: TierName) -> bytes:
    """Return the key prefix that all samples of a dataset have in a tier, NAMESPACE_BYTES long.

    Encoded samples are the bytes in storage, so pipelines with different decoding code share these samples.

    Args: dataset_identity: identity of one registration, as in `DatasetInfo`. deletion_epoch: grows when samples are deleted or corrected.
    decoding: digest of everything that turns payloads into tensors: the user's functions, their options, the packages that they import, and the
    versions of decoding libraries (`modyn/dataset/code/code_versions.py`).

    >>> before = namespace("digits", 0, "parser", "decoded")
    >>> [before == namespace("digits", *other, "decoded") for other in ((0, "parser"), (1, "parser"), (0, "other"))]
    [True, False, False]
    """
    made_by = [] if tier == "encoded" else [decoding]
    parts = [CODEC_VERSION, dataset_identity, deletion_epoch, tier, *made_by]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=NAMESPACE_BYTES).digest()


def value_identity(namespace: bytes, key: int, stamp: int) -> bytes:
    """Return the identity of a value, 12 + 16 bytes. The checksum of a buffer covers value and identity, so a reader detects a buffer with another
    value.

    Args: stamp: number of the value's admission, different for each value of a sample; 0: all values of the sample are equal.

    >>> value_identity(b"digits", 1, 0) == value_identity(b"digits", 1, 7)
    False
    """
    return namespace + key.to_bytes(8, signed=True) + stamp.to_bytes(8, signed=True)


def sample_keys(keys: Int64Array) -> list[bytes]:
    """Return the key of each sample within its namespace: 8 bytes, most significant first.

    >>> import numpy as np
    >>> sample_keys(np.array([258]))
    [b'\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x02']
    """
    packed = keys.astype(">i8").tobytes()
    return [packed[start : start + 8] for start in range(0, len(packed), 8)]
