"""Sections `serving` of the system file and of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from modyn.config.base import Matching, Section
from modyn.config.promotion import parse_condition
from modyn.errors import InvalidArgumentError

_HOST: Final = r"[A-Za-z0-9_.-]+|\[?[0-9A-Fa-f:.]+\]?"
_MODEL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


class ServingConfig(Section):
    """Predictions by the Open Inference Protocol: addresses, batches and limits of `modyn serve`. Tokens and TLS are set in section `security`."""

    host: str = Field("127.0.0.1", min_length=1, description="address on which HTTP and gRPC listen")
    http_port: int = Field(8000, ge=0, le=65535, description="port of HTTP; 0: any free one")
    grpc_port: int = Field(8001, ge=0, le=65535, description="port of gRPC; 0: any free one")
    metrics_port: int = Field(0, ge=0, le=65535, description="port of Prometheus metrics; 0: any free one")
    device: str = Field(
        "cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="device of predictions: `cpu`, `cuda` or `cuda:1`", examples=["cuda:0"]
    )
    max_batch_size: int = Field(64, ge=1, le=65536, description="largest number of rows in a batch, and so in a request")
    max_delay_ms: float = Field(
        0.0,
        ge=0,
        le=10_000,
        description="milliseconds for which the first of several requests waits for a fuller batch while the model is idle; 0: no wait, and "
        "requests that arrive while the model works form the next batch",
    )
    max_queue: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="largest number of waiting requests for each version; further ones are refused with 503",
    )
    timeout_s: float = Field(
        30.0, gt=0, le=3600, description="seconds after which a request without an answer fails; clients may set less"
    )
    inline_ms: float = Field(
        1.0,
        ge=0,
        le=100,
        description="if the batches of a model take at most this number of milliseconds, it predicts in the thread that reads requests, which "
        "avoids a thread switch; 0: never",
    )
    threads: int = Field(1, ge=1, le=64, description="number of batches of a version that are predicted at once")
    num_threads: int = Field(1, ge=1, le=1024, description="number of PyTorch threads for one batch")
    warm_up_batches: int = Field(
        4, ge=0, le=1000, description="number of batches of zeros that a new version predicts before it answers requests"
    )
    standby: int = Field(
        1, ge=0, le=100, description="number of previous versions that stay in memory, so that a rollback loads nothing"
    )
    poll_interval_s: float = Field(0.25, gt=0, le=60, description="seconds between two checks of the promoted version")
    drain_s: float = Field(10.0, ge=0, le=3600, description="seconds that running requests get when the server stops")
    keep_waiting: bool = Field(
        True,
        description="store waiting predictions and labels in the state folder, so that a restart loses none of them",
    )
    max_waiting_bytes: int = Field(
        256 * 2**20,
        ge=2**20,
        description="memory of each model for predictions that wait for a label, and labels that wait for a prediction; the oldest are dropped. "
        "Their files may take up to four times as much",
    )
    waiting_s: float = Field(
        86_400.0,
        ge=1,
        le=366 * 86_400,
        description="seconds after which a prediction without a label, or a label without a prediction, is dropped",
    )
    allowed_hosts: tuple[Annotated[str, Matching(_HOST, "names and addresses have no scheme, port or path")], ...] = Field(
        (),
        description="names and addresses, besides `host`, `localhost` and loopback addresses, by which clients may call this server over HTTP; "
        "for a proxy on this machine, the value that it sends as `Host`. Checked if no token is needed, and whenever names are set",
        examples=[["models.example.org"]],
    )
    max_message_bytes: int = Field(32 * 2**20, ge=2**10, le=2**31 - 1, description="largest size of a request")
    max_unfinished_bytes: int = Field(
        128 * 2**20,
        ge=2**10,
        description="total bytes of incomplete HTTP requests, and of labels that are being stored; more is refused with 503. At least "
        "`max_message_bytes`",
    )
    max_connections_per_client: int = Field(
        256, ge=1, le=65536, description="HTTP connections of one address, including a proxy; more are refused with 503"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest severity that is logged")

    @model_validator(mode="after")
    def _a_request_fits(self) -> ServingConfig:
        if self.max_unfinished_bytes < self.max_message_bytes:
            raise ValueError(
                f"max_unfinished_bytes is {self.max_unfinished_bytes}, less than one request may have: raise it to max_message_bytes, "
                f"{self.max_message_bytes}, or more"
            )
        return self


def unreadable_observations(pipeline: Mapping[str, Any], dataset: object) -> str:
    """Return the reason why a run cannot train on observations in a dataset, with advice. Empty: it can train on them, or reads another dataset."""
    if (pipeline.get("preprocessing") or {}).get("format") != "csv" or dataset != pipeline["data"]["dataset_id"]:
        return ""
    return (
        f"they are stored as JSON objects, but the run reads dataset '{dataset}' as CSV, so each would be a bad row; choose another dataset, or "
        "train with preprocessing.format: json"
    )


class ServedRun(Section):
    """Settings of a run for `modyn serve`: name and inputs of the model, and when a new version serves."""

    name: (
        Annotated[
            str, Matching(_MODEL_NAME, "it is part of URLs: write letters a to z, digits, `_`, `.`, `-`, first a letter or digit")
        ]
        | None
    ) = Field(None, max_length=200, description="name of the model in requests; by default, the id of the run")
    follow: Literal["promoted", "newest"] = Field(
        "promoted",
        description="version that serves: `promoted`, or the newest until one is promoted; `newest`: each version as soon as it is stored",
    )
    inputs: tuple[str, ...] = Field(
        (),
        description="inputs of the model, each as the sizes of one sample, optionally with a name before and a datatype after them; by default, "
        "the inputs of the model's definition",
        examples=[["1,28,28"], ["tokens=128:int64"]],
    )
    nan_allowed: bool = Field(False, description="accept NaN in inputs, for models that fill in missing values")
    canary_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the requests that the newest version answers while an older one serves, chosen by request id",
    )
    pinned: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="numbers of models, also of other runs, that stay loaded while the server runs and answer requests that name them as the "
        "version. The serving version, canary, shadow and the last `standby` versions need no entry",
        examples=[[17, 23]],
    )
    observations: str | None = Field(
        None,
        min_length=1,
        description="dataset of records that stores the labels that clients send; none: labels are refused",
    )
    shadow: bool = Field(
        False,
        description="send copies of requests to the newest version while an older one serves, and count different answers",
    )

    promote_if: tuple[str, ...] = Field(
        (),
        description="while `modyn serve` runs, promote each new version that meets all of these conditions; no version serves until one has met "
        "them. Empty: versions are promoted manually",
        examples=[["Accuracy on test >= 0.9", "Accuracy on test not worse than promoted by 0.01"]],
    )

    @field_validator("promote_if")
    @classmethod
    def _readable(cls, conditions: tuple[str, ...]) -> tuple[str, ...]:
        for text in conditions:
            try:
                parse_condition(text)
            except InvalidArgumentError as error:
                raise ValueError(error.message) from error
        return conditions

    def model_name(self, run_id: str) -> str:
        """Return the name of a run's model in requests."""
        return self.name or run_id

    @model_validator(mode="after")
    def _of_use(self) -> ServedRun:
        if self.follow == "newest" and self.promote_if:
            raise ValueError(
                "promote_if decides which version serves, but with follow: newest each version serves: set one of them"
            )
        if self.follow == "newest" and (self.canary_share or self.shadow):
            raise ValueError(
                "canary_share and shadow are for versions that do not serve yet, but with follow: newest each version serves at once"
            )
        if self.canary_share and self.promote_if:
            raise ValueError(
                "canary_share lets the newest version answer before promote_if has judged it: set one of them, or replace canary_share by shadow"
            )
        if self.canary_share and self.shadow:
            raise ValueError("the newest version is either canary or shadow: set canary_share or shadow, not both")
        return self
