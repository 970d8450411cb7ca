"""System configuration: one file format for the embedded stack and for the containers of the compose file.

Each value has a default that works on one machine without a file. Environment variables override the file:
`MODYN_DATABASE_URL`, `MODYN_STORAGE__ADDRESS`, and so on (two underscores between section and field).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from modyn.config.base import Section, problems
from modyn.config.cache import CacheConfig
from modyn.config.dataset import DatasetConfig
from modyn.config.serving import ServingConfig
from modyn.config.system_sections.alerts import AlertsConfig
from modyn.config.system_sections.endpoint import Address, Endpoint, socket_folder, with_password
from modyn.config.system_sections.retention import RetentionConfig
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import ConfigError, UnavailableError
from modyn.log_files import LogLimits
from modyn.registry import nearest

SERVICES = ("storage", "selector", "model_storage", "trainer_server", "evaluator", "supervisor")
"""Services in the order of their start. Each service needs only earlier services."""

ROW_GROUP_CACHE_BYTES = 256 << 20

_OTHER_VARIABLES = re.compile(
    # Kubernetes sets these variables for each service of the namespace. The service may be called modyn or modyn-storage.
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT|PORT)(_\w+)?"
    # The compose file and the tests read these variables.
    r"|DATA_DIR|WORK_DIR|CLI_UID|BASE|(POSTGRES_|REDIS_)?IMAGE|SHM_SIZE|REDIS_MAXMEMORY|MEMORY_\w+|TESTS_NO_SKIP"
)
"""Names, without the prefix MODYN_, of environment variables that are not settings."""


class ServiceConfig(Section):
    """Fields of every service."""

    address: Address | None = Field(None, description="host:port; by default, a Unix socket under the state folder")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="port for Prometheus metrics; 0: any free one, written to `metrics_url`"
    )
    metrics_host: str = Field("127.0.0.1", description="address on which metrics are served")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest severity that is logged")
    max_message_bytes: int = Field(32 * 2**20, ge=2**16, le=2**31 - 1, description="largest accepted gRPC message")
    max_threads: int = Field(64, ge=4, le=1024, description="most concurrent calls, and the same number of streams")
    max_followers: int = Field(
        256,
        ge=1,
        le=4096,
        description="most concurrent clients that follow a run, a training, an evaluation or new samples",
    )


class RecordsConfig(Section):
    """Datasets of records."""

    max_bytes: int = Field(2**20, ge=1, le=2**30, description="largest payload of a record")
    seal_s: float = Field(
        0.5,
        gt=0,
        le=3600,
        description="seconds after which appended records become samples, unless `seal_samples` is reached before",
    )
    seal_samples: int = Field(10_000, ge=1, le=10**6, description="number of appended records that become samples immediately")


class LogsConfig(Section):
    """Size of the log files of embedded services and of workers. Services in containers log to the container engine."""

    max_bytes: int = Field(
        20 << 20, ge=2**10, description="size beyond which a log file becomes `NAME.log.1`, and a new file is started"
    )
    keep: int = Field(3, ge=0, le=1000, description="number of older files that are kept of each log")

    @property
    def limits(self) -> LogLimits:
        """The limits, as `LogLimits`."""
        return LogLimits(self.max_bytes, self.keep)


class StorageConfig(ServiceConfig):
    """Storage: its payload server and replicas, reading, and indexing."""

    flight_address: Address | None = Field(
        None, description="host:port of the payload server (Arrow Flight); by default, a Unix socket"
    )
    num_threads: int = Field(2, ge=1, le=256, description="number of threads that read files for one request")
    row_group_cache_bytes: int = Field(
        ROW_GROUP_CACHE_BYTES,
        ge=0,
        description="memory for the Parquet row groups of a dataset in each process that reads payloads; it should hold all row groups that are "
        "read in turn",
    )
    dataset_roots: list[Path] = Field(
        default_factory=list,
        description="folders and buckets (s3://, gs:// or az://BUCKET/PREFIX) that may hold datasets; empty: any, but only on loopback",
    )
    short_cut: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether workers read data files directly instead of using the payload server. auto: directly if they are proven to see the "
        "same files; on: fail if they are not",
    )
    replicas: int = Field(0, ge=0, le=256, description="number of additional processes that serve payloads")
    replica_addresses: list[Address] = Field(
        default_factory=list, description="host:port of each additional process; by default, Unix sockets"
    )
    poll_interval_s: float = Field(1.0, gt=0, le=3600, description="seconds between two scans of a watched folder")
    settle_s: float = Field(0.5, ge=0, le=3600, description="seconds without a change after which a file is indexed")
    future_tolerance_s: float | None = Field(
        86_400.0,
        ge=0,
        description="largest number of seconds by which a sample's time may be in the future. A later sample would end all intervals of time "
        "triggers, so its file is set aside until then, unless `max_bad_rows` (of CSV and JSON Lines) allows skipping the row; null: "
        "any time is accepted",
    )
    indexing_memory_bytes: int = Field(
        2**32,
        ge=2**28,
        description="memory of the process that indexes files with code that is not Modyn's own (Parquet, JSON Lines, plug-ins); a file that "
        "needs more is set aside",
    )
    indexing_timeout_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="seconds that this process may take for the next 262,144 samples; a file that takes longer is set aside",
    )
    unpacked_bytes: int = Field(
        2**36,
        ge=0,
        description="largest size of unpacked copies of compressed CSV and JSON Lines files, for each dataset; a file that would exceed it is "
        "set aside",
    )
    records: RecordsConfig = Field(default_factory=RecordsConfig, description="datasets of records")
    scrub_every_s: float | None = Field(
        604_800.0,
        gt=0,
        le=10**8,
        description="seconds between two slow comparisons of indexes and data files with their checksums; null: none",
    )
    datasets: list[DatasetConfig] = Field(default_factory=list, description="datasets that are registered when storage starts")

    @model_validator(mode="after")
    def _an_address_each(self) -> StorageConfig:
        if self.replica_addresses and len(self.replica_addresses) != self.replicas:
            raise ValueError(
                f"replica_addresses has {len(self.replica_addresses)} addresses for {self.replicas} replicas; give one for each, or none"
            )
        return self


class WorkerServiceConfig(ServiceConfig):
    """A service that runs PyTorch in worker processes."""

    max_workers: int = Field(1, ge=1, le=1024, description="number of worker processes at once; further work waits in the queue")
    num_threads: int = Field(
        1, ge=1, le=1024, description="number of PyTorch threads in each worker; results are repeatable only with the same number"
    )
    user_function_timeout_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="seconds that one call of a parser, transformation or other user function may take",
    )
    worker_environment: list[str] = Field(
        default_factory=list,
        description="names of environment variables that user code may see, besides those that PyTorch, CUDA and Python read; HF_* means all "
        "names that begin with HF_",
    )
    worker_memory_bytes: int | None = Field(
        None,
        ge=2**28,
        description="address space of each worker process. PyTorch needs some gigabytes of it, and CUDA reserves far more than it uses; none: no "
        "limit",
    )
    session_idle_s: float = Field(
        60.0,
        ge=0,
        le=86_400,
        description="seconds for which a worker process waits for further work of the same run, with its imports, GPU memory and models; 0: each "
        "training and evaluation gets its own process",
    )
    session_models_bytes: int = Field(
        2**28,
        ge=0,
        description="size of the newest weights that each worker process keeps for further work of the same run; 0: none",
    )
    fork_server_idle_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="seconds without a worker process after which the fork server ends (the process with PyTorch imported from which workers are "
        "forked); the next worker then waits some seconds for a new one",
    )


class TrainerServerConfig(WorkerServiceConfig):
    """The trainer server."""

    online_niceness: int = Field(
        10,
        ge=0,
        le=19,
        description="`nice` value of trainings of runs with a section `online`, so that they yield to other processes of the machine, above all "
        "to those that answer predictions; 0: they do not yield",
    )


class EvaluatorConfig(WorkerServiceConfig):
    """The evaluator: its workers, and the model outputs that it keeps."""

    outputs_bytes: int = Field(
        2**30, ge=0, description="disk space for kept model outputs, so that no sample passes a model twice; 0: none are kept"
    )
    session_embeddings_bytes: int = Field(
        2**28,
        ge=0,
        description="memory of each worker process for embeddings, or other data on which drift is measured. They are kept for later checks of the "
        "same run, so that each sample is embedded once per model; 0: none are kept",
    )


class SupervisorConfig(ServiceConfig):
    """The supervisor: how many runs it executes at once, and how long it retries other services."""

    max_runs: int = Field(
        4, ge=1, le=1000, description="number of runs that are executed at once; further runs wait in the queue"
    )
    resume_on_start: bool = Field(
        False,
        description="resume interrupted runs in experiment mode when the supervisor starts, and after an outage. Runs in production mode are always "
        "resumed, until they are stopped",
    )
    patience_s: float = Field(
        120.0,
        ge=0,
        description="seconds for which an unreachable service is retried before a run is interrupted. If the evaluator is unreachable, a run "
        "continues without it unless a decision needs it",
    )
    stream_batch_size: int = Field(10_000, ge=1, le=1_000_000, description="number of samples in one batch of the stream")
    lag_look_s: float = Field(
        10.0,
        gt=0,
        description="seconds between two counts of the waiting samples of a production run; the counts lead to a warning about slow checks",
    )
    events_kept: int = Field(
        10_000,
        ge=100,
        le=10_000_000,
        description="number of newest events of each run that are kept for `modyn watch`; older ones are removed while the run continues",
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

    state_dir: Path = Field(Path(".modyn"), description="folder for all state of the services")
    database_url: str | None = Field(
        None, description="PostgreSQL, as postgresql://user:password@host/name; by default, embedded", repr=False
    )
    redis_url: str | None = Field(None, description="Redis, as redis://host:port/0; by default, embedded", repr=False)
    redis_password_file: Path | None = Field(
        None, description="file with the password for `redis_url`, instead of one in the URL"
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
        """Let environment variables override the file, whose values are constructor arguments. Containers share a file, but each container has its
        own variables.
        """
        return env_settings, init_settings

    @field_validator("state_dir", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if value == "":  # an empty path would mean the current folder
            raise ValueError("it is empty; name a folder, or leave it out for .modyn in the current one")
        return value

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @property
    def run_dir(self) -> Path:
        """Return the folder of the sockets, mode 0700."""
        return socket_folder(self.state_dir, "run", "modyn")

    @property
    def log_dir(self) -> Path:
        """Return the folder of the logs of embedded services."""
        return self.state_dir / "logs"

    def log_file(self, part: str) -> Path:
        """Return the log of a part of the embedded stack: a service, a database, or `stack`, the process that supervises services and databases."""
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
        """Return the section of a service. A replica has the section of storage, with its own address and metrics port."""
        names = list(self.replicas) if name.startswith("replica-") else []
        if name in names:
            # Without an address, the replica gets its own Unix socket, for health checks on this machine.
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
        """Return the payload servers: storage itself first, then its replicas."""
        return [self.endpoint("flight"), *self.replicas.values()]

    def without_databases(self) -> SystemConfig:
        """Return a copy without the passwords of databases and alerts, for processes that need no password."""
        secrets = dict.fromkeys(("database_url", "redis_url", "redis_password_file"))
        return self.model_copy(update={**secrets, "alerts": AlertsConfig()})

    def resolved_redis_url(self) -> str | None:
        """Return the URL, with password, of the configured Redis, or of the running embedded Redis. None: the embedded Redis does not run, or the
        password file cannot be read.
        """
        try:
            if self.redis_url is None:
                return (self.state_dir / "redis" / "url").read_text().strip()
            if self.redis_password_file is None:
                return self.redis_url
            return with_password(self.redis_url, self.redis_password_file.read_text().strip())
        except OSError:
            return None

    def resolved_database_url(self) -> str:
        """Return the URL of the configured PostgreSQL, or of the embedded one. Raises UnavailableError: the embedded one has not written its URL."""
        try:
            return self.database_url or (self.state_dir / "postgres" / "url").read_text().strip()
        except OSError as error:
            raise UnavailableError(
                f"no postgres is running for {self.state_dir}: start the embedded one with `modyn up`, or set database_url in the system file"
            ) from error


def load_system_config(path: Path | None = None) -> SystemConfig:
    """Load the configuration from `path`. Without a path, load the file that `MODYN_CONFIG` names. Without this variable, use the defaults. Other
    environment variables override the file and the defaults.

    Raises: ConfigError: the file cannot be read or is not a mapping, fields are wrong (the error lists all, with file, line and path), or a variable
    `MODYN_…` is not a setting.
    """
    if path is None and os.environ.get("MODYN_CONFIG"):
        path = Path(os.environ["MODYN_CONFIG"])
    # This import is late, because workers import this module but read no file.
    from modyn.config.yaml_source import load_yaml, with_lines

    found, source = _misspelt_variables(SystemConfig), None
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the system configuration {path}: {error}") from error
        source = load_yaml(text, str(path), empty={})
    try:
        config = SystemConfig(**(source.data if source else {}))
    except SettingsError as error:  # the cause is not shown, because it contains the value, which may be secret
        raise ConfigError(f'{error}: a variable MODYN_… that holds a list must be JSON, for example \'["a", "b"]\'') from None
    except ValidationError as error:
        wrong = problems(error, "", SystemConfig)
        found += with_lines(wrong, source) if source else [f"system configuration: {problem}" for problem in wrong]
    if found:
        raise ConfigError("\n".join(found))
    return config


def _misspelt_variables(settings: type[BaseModel]) -> list[str]:
    """Return a message for each variable `MODYN_…` that names neither a field of `settings` nor a field of one of its sections."""
    known = ["MODYN_CONFIG"]
    for name, field in settings.model_fields.items():
        section = field.annotation
        known.append(f"MODYN_{name}".upper())
        if isinstance(section, type) and issubclass(section, BaseModel):
            known += [f"MODYN_{name}__{key}".upper() for key in section.model_fields]
    unknown = [name for name in sorted(os.environ) if name.upper().startswith("MODYN_") and name.upper() not in known]
    return [
        f"environment: {name} is not a setting{nearest(name.upper(), known) or '.'} A section and its field are joined by two underscores; "
        "correct the name, or unset the variable"
        for name in unknown
        if "__" in name or not _OTHER_VARIABLES.fullmatch(name.upper().removeprefix("MODYN_"))
    ]
