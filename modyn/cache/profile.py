"""What was measured of a dataset on one machine: every parameter of the performance model, kept in a file below the state folder.

`modyn cache profile` measures (`modyn/trainer_server/cache_profile.py`) and writes; `modyn cache plan` reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from modyn.atomic_write import write_atomically
from modyn.cache.measuring import StoreRates
from modyn.cache.memory_tier import FILE_BYTES, PAGE_BYTES
from modyn.cache.performance_model import CacheStore, DatasetSizes, TrainingNodes, Workload
from modyn.cache.redis_scripts import OVERHEAD_BYTES
from modyn.errors import CorruptStateError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.json_codec import from_json, to_json
from modyn.state_folders import make_private_folder

PROFILE_VERSION: Final = 2
"""Raised with every change of the record: files of other versions are refused."""
_AGAIN: Final = "measure it again by `modyn cache profile PIPELINE.yaml`"


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """What was measured of a dataset as one pipeline prepares it. Rates are those of the whole machine with `num_workers` workers: several
    trainings share them."""

    dataset: str
    dataset_identity: str
    """Of its registration: a dataset that is registered later under this name is another one."""
    data_digest: str
    """Of the pipeline's section `data`, see `section_digest`."""
    measured_at: float
    """Seconds since 1970."""
    seconds: float
    """That measuring took."""
    machine: str
    """Processors, memory, system and accelerator, for people."""
    memory_bytes: int
    """Of the machine: no cache can be larger."""
    training: str
    """Model, device and size of a batch that `accelerator_samples_per_s` was measured with, for people."""
    num_workers: int
    """Threads or processes that read, decoded and augmented."""
    num_samples: int
    """Of the dataset."""
    num_measured: int
    """Samples that were decoded and augmented, of which sizes are the mean."""
    encoded_bytes: float
    """Mean size of a sample as stored; of all that were read."""
    decoded_bytes: float | None
    """Mean size, as a tier keeps it, after the parser, the tokenizer and deterministic transformations; None: no tier can keep it."""
    augmented_bytes: float | None
    """The same after all transformations."""
    storage_bytes_per_s: float
    """Of payloads, read by key in random order."""
    decode_and_augment_samples_per_s: float
    """From stored bytes to a batch of tensors."""
    augment_samples_per_s: float
    """From decoded samples to a batch of tensors."""
    worker_read_bytes_per_s: float
    """Of one worker while it reads files and others do: what trainings compare their own with; 0: samples come over Flight."""
    decode_s: float
    """Seconds of one worker's processor to decode a sample, while all workers did so: for the same."""
    augment_s: float
    """The same to augment a sample and to put it into a batch; 0: nothing is done for each sample."""
    accelerator_samples_per_s: float
    """Forward, backward and a step of the optimizers, from a batch in memory."""
    stores: Mapping[str, StoreRates]
    """By name: what could hold a cache."""
    notes: tuple[str, ...] = ()
    """In which way something was measured that is not what its name says, in sentences for users."""
    too_little: tuple[str, ...] = ()
    """What was measured with too few samples to count on, in sentences for users: plans say so too."""

    @property
    def workload(self) -> Workload:
        """The workload of the performance model: one node, whose network is in what was measured of storage. Raises InvalidArgumentError: a
        parameter is none that the model takes, such as a size of 0."""
        nodes = TrainingNodes(self.decode_and_augment_samples_per_s, self.augment_samples_per_s, self.accelerator_samples_per_s)
        if not self.encoded_bytes > 0:
            raise InvalidArgumentError(
                f"samples of dataset '{self.dataset}' have {self.encoded_bytes:g} bytes on average: there is nothing to cache"
            )
        decoded, augmented = (
            1.0 if size is None else size / self.encoded_bytes for size in (self.decoded_bytes, self.augmented_bytes)
        )
        keeps_decoded, keeps_augmented = self.decoded_bytes is not None, self.augmented_bytes is not None
        return Workload(
            nodes,
            DatasetSizes(self.num_samples, self.encoded_bytes, decoded, augmented, keeps_decoded, keeps_augmented),
            self.storage_bytes_per_s,
            storage_crosses_network=False,
        )

    def preparation_s(self, num_read: int, num_decoded: int, num_augmented: int) -> float:
        """Estimate the seconds that reading so many samples from storage, decoding so many and augmenting so many takes this machine, at the rates of
        all workers together, one step after the other."""
        decode_and_augment_s, augment_s = 1 / self.decode_and_augment_samples_per_s, 1 / self.augment_samples_per_s
        read_s = num_read * self.encoded_bytes / self.storage_bytes_per_s
        # A decoder may be measured as faster than what augments alone: no step takes less than no time.
        return read_s + num_decoded * max(0.0, decode_and_augment_s - augment_s) + num_augmented * augment_s

    def cache_store(self, name: str, size_bytes: int) -> CacheStore:
        """The store `name` as the performance model takes it, with room for `size_bytes`. Raises NotFoundError: it was not measured."""
        if name not in self.stores:
            raise NotFoundError(f"no store '{name}' was measured; there are {', '.join(self.stores)}: {_AGAIN}")
        page_bytes, overhead_bytes = (PAGE_BYTES, FILE_BYTES) if name == "memory" else (0, OVERHEAD_BYTES)
        return CacheStore(size_bytes, self.stores[name].read_bytes_per_s, False, page_bytes, overhead_bytes)


def section_digest(section: Mapping[str, Any]) -> str:
    """SHA-256 of a section in hexadecimal, whatever the order of its keys.

    >>> section_digest({"a": 1, "b": 2}) == section_digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(to_json(section, sort_keys=True).encode()).hexdigest()


def profile_path(state_dir: Path, dataset: str, data_digest: str) -> Path:
    """Where the profile of a dataset with this section `data` is kept."""
    # A name in a pipeline may be any text, also one that no dataset can have.
    name = "".join(sign if sign.isalnum() or sign in "_.-" else "_" for sign in dataset)
    return state_dir / "cache" / "profiles" / f"{name[:100]}-{data_digest[:16]}.json"


def profile_of(state_dir: Path, data: Mapping[str, Any], dataset_identity: str) -> CacheProfile | None:
    """What was measured for a section `data`, all of its fields, and this registration of its dataset; None: nothing. Raises as `read_profile`, but
    for NotFoundError."""
    try:
        profile = read_profile(profile_path(state_dir, data["dataset_id"], section_digest(data)))
    except NotFoundError:
        return None
    return profile if profile.dataset_identity == dataset_identity else None


def write_profile(path: Path, profile: CacheProfile) -> None:
    """Keep a profile in place of the one before. Raises UnavailableError: it cannot be written."""
    content = {"version": PROFILE_VERSION, "profile": dataclasses.asdict(profile)}
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise UnavailableError(f"cannot make {path.parent}: {error.strerror or error}; make it writable for you") from error
    write_atomically(path, [sealed(content)])


def sealed(content: Mapping[str, Any]) -> bytes:
    """The bytes of a file: the content, which has a `version`, and its checksum."""
    return to_json({"digest": section_digest(content), "content": content}).encode()


def unsealed(text: bytes, version: int) -> Any:
    """The content of `sealed`. Raises: ValueError, TypeError, KeyError: it is damaged, or of another version."""
    saved = from_json(text)
    content = saved["content"]
    if saved["digest"] != section_digest(content):
        raise ValueError("its content does not match its checksum")
    if content["version"] != version:
        raise ValueError(f"it is of version {content['version']}, not {version}")
    return content


def read_profile(path: Path) -> CacheProfile:
    """Read what `write_profile` wrote.

    Raises: NotFoundError: nothing was measured. CorruptStateError: the file is damaged, or of another version. UnavailableError: it cannot be
    read. Each says which command measures.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(
            f"the dataset was not measured with this section `data`, for there is no {path}: run `modyn cache profile PIPELINE.yaml` first"
        ) from None
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror or error}; {_AGAIN}") from error
    try:
        fields = unsealed(text, PROFILE_VERSION)["profile"]
        stores = {name: StoreRates(**rates) for name, rates in fields["stores"].items()}
        texts = {name: tuple(fields.get(name, ())) for name in ("notes", "too_little")}
        return CacheProfile(**{**fields, "stores": stores, **texts})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptStateError(f"the profile {path} cannot be used: {error}; {_AGAIN}") from error
