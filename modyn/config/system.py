"""The system configuration: one file that drives the embedded stack and the composed one.

Every value has a default that works on one machine without any file. Environment variables override the file:
`MODYN_DATABASE_URL`, `MODYN_STORAGE__ADDRESS`, and so on (two underscores between section and field).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from modyn.config.alerts import AlertsConfig
from modyn.config.base import Section, problems
from modyn.config.cache import CacheConfig
from modyn.config.dataset import DatasetConfig
from modyn.config.endpoint import Address, Endpoint, socket_folder, with_password
from modyn.config.logs import LogsConfig
from modyn.config.record_log import RecordsConfig
from modyn.config.retention import RetentionConfig
from modyn.config.security import SecurityConfig
from modyn.config.serving import ServingConfig
from modyn.errors import ConfigError, UnavailableError

SERVICES = ("storage", "selector", "model_storage", "trainer_server", "evaluator", "supervisor")
"""In the order in which they start: each needs only those before it."""

ROW_GROUP_CACHE_BYTES = 256 << 20


class ServiceConfig(Section):
    """Fields of every service."""

    address: Address | None = Field(None, description="host:port; none: a Unix socket under the state folder")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="serve Prometheus metrics at this port; 0: any free one, written to `metrics_url`"
    )
    metrics_host: str = Field("127.0.0.1", description="address that metrics are served on")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severity that is logged")
    max_message_bytes: int = Field(32 * 2**20, ge=2**16, le=2**31 - 1, description="largest gRPC message accepted")
    max_threads: int = Field(64, ge=4, le=1024, description="calls served at once, and as many streams")
    max_followers: int = Field(
        256, ge=1, le=4096, description="clients that may follow a run, a training, an evaluation or new samples at once"
    )


class StorageConfig(ServiceConfig):
    """Storage: its payload server and replicas, reading, and indexing."""

    flight_address: Address | None = Field(
        None, description="host:port of the payload server (Arrow Flight); none: a Unix socket"
    )
    num_threads: int = Field(2, ge=1, le=256, description="threads that read files for one request")
    row_group_cache_bytes: int = Field(
        ROW_GROUP_CACHE_BYTES,
        ge=0,
        description="what each process that reads payloads keeps of the Parquet row groups of a dataset; should hold those that are read in "
        "turn",
    )
    dataset_roots: list[Path] = Field(
        default_factory=list,
        description="folders and buckets (s3://, gs:// or az://BUCKET/PREFIX) that datasets may lie in; empty: any, on loopback only",
    )
    short_cut: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether workers read samples by themselves, not from the payload server; auto: if it is proven that they see the same "
        "files; on: or else they fail",
    )
    replicas: int = Field(0, ge=0, le=256, description="further processes that serve payloads")
    replica_addresses: list[Address] = Field(
        default_factory=list, description="host:port of each further process; none: Unix sockets"
    )
    poll_interval_s: float = Field(1.0, gt=0, le=3600, description="seconds between looks at a watched folder")
    settle_s: float = Field(0.5, ge=0, le=3600, description="a file is indexed once it has not changed for so many seconds")
    future_tolerance_s: float | None = Field(
        86_400.0,
        ge=0,
        description="a sample that lies further in the future would end all intervals of time triggers: its file is set aside until its time has "
        "come, unless `max_bad_rows` (of CSV and JSON Lines) lets the row be skipped; null: any time is taken",
    )
    indexing_memory_bytes: int = Field(
        2**32,
        ge=2**28,
        description="memory of a process that indexes files by code that is not Modyn's own (Parquet, JSON Lines, plug-ins); a file that takes "
        "more is set aside",
    )
    indexing_timeout_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="seconds that such a process may take for the next 262,144 samples; a file that takes longer is set aside",
    )
    unpacked_bytes: int = Field(
        2**36,
        ge=0,
        description="most bytes of unpacked copies of compressed CSV and JSON Lines files, for each dataset; a file that would take more is set "
        "aside",
    )
    records: RecordsConfig = Field(default_factory=RecordsConfig, description="datasets of records")
    scrub_every_s: float | None = Field(
        604_800.0,
        gt=0,
        le=10**8,
        description="seconds between two slow comparisons of indexes and data files with their checksums; null: none",
    )
    datasets: list[DatasetConfig] = Field(default_factory=list, description="registered when storage starts")

    @model_validator(mode="after")
    def _an_address_each(self) -> StorageConfig:
        if self.replica_addresses and len(self.replica_addresses) != self.replicas:
            raise ValueError(
                f"replica_addresses has {len(self.replica_addresses)} addresses for {self.replicas} replicas; give one for each, or none"
            )
        return self


class WorkerServiceConfig(ServiceConfig):
    """A service that runs PyTorch in worker processes."""

    max_workers: int = Field(1, ge=1, le=1024, description="worker processes at once; further work waits in the queue")
    num_threads: int = Field(
        1, ge=1, le=1024, description="threads of PyTorch in each worker; part of what makes results repeatable"
    )
    user_function_timeout_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="seconds that one call of a parser, transformation or other function of the user may take",
    )
    worker_environment: list[str] = Field(
        default_factory=list,
        description="names of environment variables that user code may see, beside those that PyTorch, CUDA and Python read; HF_* stands for "
        "all that begin with HF_",
    )
    worker_memory_bytes: int | None = Field(
        None,
        ge=2**28,
        description="address space of each worker process, of which PyTorch takes some gigabytes by itself, and CUDA far more than it uses; "
        "none: no limit",
    )
    session_idle_s: float = Field(
        60.0,
        ge=0,
        le=86_400,
        description="seconds that a worker process waits for further work of the same run, with what it has imported, its GPU and its models; "
        "0: each training and evaluation gets a process of its own",
    )
    session_models_bytes: int = Field(
        2**28,
        ge=0,
        description="weights that each worker process keeps for further work of the same run, the newest; 0: keep none",
    )
    fork_server_idle_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="seconds without a worker process after which the process that they are forked from, with PyTorch imported, ends; the next "
        "worker waits some seconds for a new one",
    )


class TrainerServerConfig(WorkerServiceConfig):
    """The trainer server."""

    online_niceness: int = Field(
        10,
        ge=0,
        le=19,
        description="how far trainings of runs with a section `online` give way to other processes of their machine, those that answer predictions "
        "above all; as `nice` counts, 0: not at all",
    )


class EvaluatorConfig(WorkerServiceConfig):
    """The evaluator: its workers, and the model outputs that it keeps."""

    outputs_bytes: int = Field(
        2**30, ge=0, description="disk space for kept model outputs, so that no sample is forwarded twice; 0: keep none"
    )
    session_embeddings_bytes: int = Field(
        2**28,
        ge=0,
        description="embeddings, or what else drift is measured on, that each worker process keeps for further checks of the same run, so that "
        "each sample is embedded once a model; 0: keep none",
    )


class SupervisorConfig(ServiceConfig):
    """The supervisor: how many runs it executes at once, and how long it retries other services."""

    max_runs: int = Field(4, ge=1, le=1000, description="runs executed at once; further runs wait in the queue")
    resume_on_start: bool = Field(
        False,
        description="resume also interrupted runs in experiment mode by themselves: when the supervisor starts, and after an outage; "
        "those in production mode go on in any case, until they are stopped",
    )
    patience_s: float = Field(
        120.0,
        ge=0,
        description="seconds to retry a service that cannot be reached before a run is interrupted, or, for the evaluator, goes on without it "
        "unless a decision waits for it",
    )
    stream_batch_size: int = Field(10_000, ge=1, le=1_000_000, description="samples in one batch of the stream")
    lag_look_s: float = Field(
        10.0,
        gt=0,
        description="seconds between two looks at how many samples wait for a production run, by which it warns that its checks are too slow",
    )
    events_kept: int = Field(
        10_000,
        ge=100,
        le=10_000_000,
        description="events kept of each run for `modyn watch`; older ones are removed as the run goes on",
    )


class SystemConfig(BaseSettings):
    """The system configuration: all services of one installation."""

    model_config = SettingsConfigDict(
        env_prefix="MODYN_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        validate_default=True,
        protected_namespaces=(),
    )

    state_dir: Path = Field(Path(".modyn"), description="folder for everything that services keep")
    database_url: str | None = Field(
        None, description="PostgreSQL, as postgresql://user:password@host/name; none: embedded", repr=False
    )
    redis_url: str | None = Field(None, description="Redis, as redis://host:port/0; none: embedded", repr=False)
    redis_password_file: Path | None = Field(
        None, description="file that holds the password for `redis_url`, in place of one in it"
    )
    logs: LogsConfig = LogsConfig()
    retention: RetentionConfig = RetentionConfig()
    security: SecurityConfig = SecurityConfig()
    alerts: AlertsConfig = AlertsConfig()
    cache: CacheConfig = CacheConfig()
    storage: StorageConfig = StorageConfig()
    selector: ServiceConfig = ServiceConfig()
    model_storage: ServiceConfig = ServiceConfig()
    trainer_server: TrainerServerConfig = TrainerServerConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    serving: ServingConfig = ServingConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file (a constructor argument): containers share a file and differ in their environment."""
        return env_settings, init_settings

    @field_validator("state_dir", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if value == "":  # As a path it would be the current folder.
            raise ValueError("it is empty; name a folder, or leave it out for .modyn in the current one")
        return value

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @property
    def run_dir(self) -> Path:
        """Folder of the sockets, mode 0700."""
        return socket_folder(self.state_dir, "run", "modyn")

    @property
    def log_dir(self) -> Path:
        """Folder of the logs of embedded services."""
        return self.state_dir / "logs"

    def log_file(self, part: str) -> Path:
        """Log of a part of the embedded stack: a service, a database, or `stack`, the process that supervises them."""
        return self.state_dir / part / "log" if part in ("postgres", "redis") else self.log_dir / f"{part}.log"

    def service_dir(self, service: str) -> Path:
        """Return the state folder of one service."""
        return self.state_dir / service

    @property
    def replicas(self) -> dict[str, Endpoint]:
        """Endpoints of the payload replicas by name; each replica is configured by the section of storage."""
        addresses = self.storage.replica_addresses or [
            f"unix:{self.run_dir}/flight-{number}.sock" for number in range(1, self.storage.replicas + 1)
        ]
        own = self.endpoint("flight")
        return {
            f"replica-{number}": own.model_copy(update={"address": address}) for number, address in enumerate(addresses, start=1)
        }

    def service(self, name: str) -> ServiceConfig:
        """Return the section of service `name`; a replica has storage's, with an address and a metrics port of its own."""
        names = list(self.replicas) if name.startswith("replica-") else []
        if name in names:
            # A Unix socket of its own, for health checks on this machine.
            port = self.storage.metrics_port
            update = {"address": None, "metrics_port": port + names.index(name) + 1 if port else 0}
            return self.storage.model_copy(update=update)
        section = getattr(self, name)
        assert isinstance(section, ServiceConfig)
        return section

    def endpoint(self, name: str) -> Endpoint:
        """Return the endpoint of service `name`; `flight` is storage's payload server."""
        section = self.storage if name == "flight" else self.service(name)
        address = self.storage.flight_address if name == "flight" else section.address
        return Endpoint(
            address=address or f"unix:{self.run_dir / name}.sock",
            security=self.security,
            max_message_bytes=section.max_message_bytes,
        )

    @property
    def flight_endpoints(self) -> list[Endpoint]:
        """The payload servers: storage itself first, then its replicas."""
        return [self.endpoint("flight"), *self.replicas.values()]

    def without_databases(self) -> SystemConfig:
        """Return it for processes that need no database and send no alerts, without the passwords of those."""
        secrets = dict.fromkeys(("database_url", "redis_url", "redis_password_file"))
        return self.model_copy(update={**secrets, "alerts": AlertsConfig()})

    def resolved_redis_url(self) -> str | None:
        """Return the URL of the configured Redis with its password, or of the embedded one, which records it while it runs; None: none does, or
        its password cannot be read here."""
        try:
            if self.redis_url is None:
                return (self.state_dir / "redis" / "url").read_text().strip()
            if self.redis_password_file is None:
                return self.redis_url
            return with_password(self.redis_url, self.redis_password_file.read_text().strip())
        except OSError:
            return None

    def resolved_database_url(self) -> str:
        """Return the URL of the configured PostgreSQL, or of the embedded one, which records it at start. Raises UnavailableError."""
        try:
            return self.database_url or (self.state_dir / "postgres" / "url").read_text().strip()
        except OSError as error:
            raise UnavailableError(
                f"no postgres is running for {self.state_dir}: start the embedded one with `modyn up`, or set database_url in the system file"
            ) from error


def load_system_config(path: Path | None = None) -> SystemConfig:
    """Load the configuration from `path`, else from the file `MODYN_CONFIG`, else the defaults; the environment wins over each.

    Raises: ConfigError: the file cannot be read or is no mapping, or fields are wrong: all of them, with file, line and path; a variable
        `MODYN_…` is no setting.
    """
    if path is None and os.environ.get("MODYN_CONFIG"):
        path = Path(os.environ["MODYN_CONFIG"])
    # Not for workers, which import this module and read no file.
    from modyn.config.environment import misspelt_variables
    from modyn.config.yaml_source import load_yaml, with_lines

    found, source = misspelt_variables(SystemConfig), None
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the system configuration {path}: {error}") from error
        source = load_yaml(text, str(path), empty={})
    try:
        config = SystemConfig(**(source.data if source else {}))
    except ValidationError as error:
        wrong = problems(error, "", SystemConfig)
        found += with_lines(wrong, source) if source else [f"system configuration: {problem}" for problem in wrong]
    if found:
        raise ConfigError("\n".join(found))
    return config
