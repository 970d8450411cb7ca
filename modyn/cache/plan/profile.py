"""Profile of a dataset on one machine: every parameter of the performance model, kept in a file below the state folder.

`modyn cache profile` measures a profile (`modyn/trainer_server/cache_plan/cache_profile.py`) and writes it. `modyn cache plan` reads it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from modyn.atomic_write import write_atomically
from modyn.cache.plan.measuring import StoreRates
from modyn.cache.plan.performance_model import CacheStore, DatasetSizes, TrainingNodes, Workload
from modyn.cache.tiers.memory_tier import FILE_BYTES, PAGE_BYTES
from modyn.cache.tiers.redis_tier_scripts import OVERHEAD_BYTES
from modyn.errors import CorruptStateError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.json_codec import from_json, to_json
from modyn.state_folders import make_private_folder

PROFILE_VERSION: Final = 2
"""Incremented with every change of the record. Files of other versions are refused."""
_AGAIN: Final = "measure it again by `modyn cache profile PIPELINE.yaml`"


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """Measurements of a dataset, prepared by one pipeline. Each rate is that of the whole machine with `num_workers` workers, for all trainings
    together."""

    dataset: str
    dataset_identity: str
    """Identity of the dataset's registration. A later registration under the same name is another dataset."""
    data_digest: str
    """Digest of the section `data` of the pipeline, see `section_digest`."""
    measured_at: float
    """Seconds since 1970."""
    seconds: float
    """Duration of the measurement."""
    machine: str
    """Processors, memory, system and accelerator, as a text for people."""
    memory_bytes: int
    """Memory of the machine: no cache can be larger."""
    training: str
    """Model, device and batch size with which `accelerator_samples_per_s` was measured, for people."""
    num_workers: int
    """Threads or processes that read, decoded and augmented."""
    num_samples: int
    """Number of samples of the dataset."""
    num_measured: int
    """Number of samples that were decoded and augmented. `decoded_bytes` and `augmented_bytes` are means over these samples."""
    encoded_bytes: float
    """Mean size of a stored sample, over all samples that were read."""
    decoded_bytes: float | None
    """Mean size of a sample in a tier, after the parser, the tokenizer and deterministic transformations; None: no tier can keep decoded samples."""
    augmented_bytes: float | None
    """Mean size of a sample in a tier, after all transformations; None: no tier can keep augmented samples."""
    storage_bytes_per_s: float
    """Rate of payloads, read by key in random order."""
    decode_and_augment_samples_per_s: float
    """Rate from stored bytes to a batch of tensors."""
    augment_samples_per_s: float
    """Rate from decoded samples to a batch of tensors."""
    worker_read_bytes_per_s: float
    """Rate of one worker while all workers read files. Trainings compare their own rate with this rate. 0: samples come over Flight, not from files.
    """
    decode_s: float
    """Seconds of one worker's processor to decode a sample while all workers decode. Trainings compare their own cost with this cost."""
    augment_s: float
    """Seconds of one worker's processor to augment a sample and to put it into a batch; 0: no code runs for each sample."""
    accelerator_samples_per_s: float
    """Rate of training on a batch in memory: forward, backward and optimizer step."""
    stores: Mapping[str, StoreRates]
    """Stores that could hold a cache, by name."""
    notes: tuple[str, ...] = ()
    """Sentences for users about fields that were measured in another way than their names say."""
    too_little: tuple[str, ...] = ()
    """Sentences for users about values that were measured with too few samples. Plans show these sentences too."""

    @property
    def workload(self) -> Workload:
        """The workload of the performance model: one node. The measured rate of storage includes the network. Raises InvalidArgumentError: the model
        does not accept a parameter, such as a size of 0."""
        nodes = TrainingNodes(self.decode_and_augment_samples_per_s, self.augment_samples_per_s, self.accelerator_samples_per_s)
        if not self.encoded_bytes > 0:
            raise InvalidArgumentError(
                f"samples of dataset '{self.dataset}' have {self.encoded_bytes:g} bytes on average: there is nothing to cache"
            )
        # A form that cannot be kept gets the size of an encoded sample. The model does not use this size.
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
        """Estimate the seconds of reading, decoding and augmenting these numbers of samples on this machine, at the rates of all workers, one
        step after the other."""
        decode_and_augment_s, augment_s = 1 / self.decode_and_augment_samples_per_s, 1 / self.augment_samples_per_s
        read_s = num_read * self.encoded_bytes / self.storage_bytes_per_s
        # Decoding with augmenting may be measured as faster than augmenting alone, but no step takes negative time.
        return read_s + num_decoded * max(0.0, decode_and_augment_s - augment_s) + num_augmented * augment_s

    def cache_store(self, name: str, size_bytes: int) -> CacheStore:
        """Return the store `name` with room for `size_bytes`, for the performance model. Raises NotFoundError: the store was not measured."""
        if name not in self.stores:
            raise NotFoundError(f"no store '{name}' was measured; there are {', '.join(self.stores)}: {_AGAIN}")
        page_bytes, overhead_bytes = (PAGE_BYTES, FILE_BYTES) if name == "memory" else (0, OVERHEAD_BYTES)
        return CacheStore(size_bytes, self.stores[name].read_bytes_per_s, False, page_bytes, overhead_bytes)


def section_digest(section: Mapping[str, Any]) -> str:
    """SHA-256 of a section in hexadecimal, independent of the order of its keys.

    >>> section_digest({"a": 1, "b": 2}) == section_digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(to_json(section, sort_keys=True).encode()).hexdigest()


def profile_path(state_dir: Path, dataset: str, data_digest: str) -> Path:
    """Path of the profile of a dataset with this section `data`."""
    # The name in a pipeline may be any text, so characters that a file name may not contain are replaced.
    name = "".join(sign if sign.isalnum() or sign in "_.-" else "_" for sign in dataset)
    # The digest separates the profiles of one dataset with different sections `data`.
    return state_dir / "cache" / "profiles" / f"{name[:100]}-{data_digest[:16]}.json"


def profile_of(state_dir: Path, data: Mapping[str, Any], dataset_identity: str) -> CacheProfile | None:
    """Return the profile of a complete section `data` and this registration of its dataset; None if there is no such profile. Raises the errors of
    `read_profile` except NotFoundError."""
    try:
        profile = read_profile(profile_path(state_dir, data["dataset_id"], section_digest(data)))
    except NotFoundError:
        return None
    return profile if profile.dataset_identity == dataset_identity else None


def write_profile(path: Path, profile: CacheProfile) -> None:
    """Write a profile, which replaces an earlier one. Raises UnavailableError: the profile cannot be written."""
    content = {"version": PROFILE_VERSION, "profile": dataclasses.asdict(profile)}
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise UnavailableError(f"cannot make {path.parent}: {error.strerror or error}; make it writable for you") from error
    write_atomically(path, [sealed(content)])


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file: content with a `version`, and its checksum."""
    return to_json({"digest": section_digest(content), "content": content}).encode()


def unsealed(text: bytes, version: int) -> Any:
    """Return the content of a file that `sealed` made. Raises: ValueError, TypeError, KeyError: the file is damaged or has another version."""
    saved = from_json(text)
    content = saved["content"]
    if saved["digest"] != section_digest(content):
        raise ValueError("its content does not match its checksum")
    if content["version"] != version:
        raise ValueError(f"it is of version {content['version']}, not {version}")
    return content


def read_profile(path: Path) -> CacheProfile:
    """Read a profile.

    Raises: NotFoundError: nothing was measured. CorruptStateError: the file is damaged, or of another version. UnavailableError: the file cannot be
        read. The message of each error names the command that measures.
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
