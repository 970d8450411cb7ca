"""Under which keys a cache holds samples: equal only where equal code makes equal bytes of the same samples."""

from __future__ import annotations

import hashlib
import json
from typing import Final, Literal

from modyn.records import Int64Array

TierName = Literal["encoded", "decoded", "augmented"]

CODEC_VERSION: Final = 3
"""Of the buffers that `sample_codec.py` writes. Another one is needed whenever these would be read in another way."""
NAMESPACE_BYTES: Final = 12
"""Of 2^48 namespaces, two would be expected to be the same."""


def namespace(dataset_identity: str, deletion_epoch: int, decoding: str, tier: TierName) -> bytes:
    """Return what stands before all keys of the samples of a dataset in a tier, NAMESPACE_BYTES long.

    Encoded samples are the bytes as stored: pipelines that decode them in different ways share these.

    Args: dataset_identity: of one registration, as in `DatasetInfo`. deletion_epoch: grows when samples are deleted or corrected.
    decoding: a digest of all that turns payloads into tensors: the user's functions, their options, the packages that they import, and the
    versions of libraries that decode (`modyn/dataset/code_versions.py`).

    >>> before = namespace("digits", 0, "parser", "decoded")
    >>> [before == namespace("digits", *other, "decoded") for other in ((0, "parser"), (1, "parser"), (0, "other"))]
    [True, False, False]
    """
    made_by = [] if tier == "encoded" else [decoding]
    parts = [CODEC_VERSION, dataset_identity, deletion_epoch, tier, *made_by]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=NAMESPACE_BYTES).digest()


def value_identity(namespace: bytes, key: int, stamp: int) -> bytes:
    """Return what the checksum of a value covers besides its bytes, so that it is found nowhere else: 12 + 16 bytes.

    Args: stamp: of its admission, which no other value of the sample has; 0: all values of the sample are equally good.

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
