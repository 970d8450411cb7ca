"""One system file, which the environment overrides. Each mistake in it is reported with its place."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SERVICES, SystemConfig, load_system_config
from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import ConfigError, UnavailableError


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MODYN_")]:
        monkeypatch.delenv(name)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "modyn.yaml"
    path.write_text(text)
    return path


def test_without_a_file_everything_is_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_system_config()
    assert config.state_dir == tmp_path / ".modyn"
    assert all(config.endpoint(name).is_unix and config.endpoint(name).is_local for name in (*SERVICES, "flight"))
    assert len({config.endpoint(name).address for name in (*SERVICES, "flight")}) == 7


def test_values_come_from_the_file_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(
        tmp_path, "state_dir: /s\nstorage: {num_threads: 3, address: '127.0.0.1:1'}\ntrainer_server: {max_workers: 2}\n"
    )
    monkeypatch.setenv("MODYN_STORAGE__ADDRESS", "127.0.0.1:2")
    monkeypatch.setenv("MODYN_DATABASE_URL", "postgresql://u@h/d")
    config = load_system_config(path)
    assert config.state_dir == Path("/s")
    assert (config.storage.num_threads, config.storage.address, config.trainer_server.max_workers) == (3, "127.0.0.1:2", 2)
    assert config.resolved_database_url() == "postgresql://u@h/d"
    assert config.endpoint("storage").address == "127.0.0.1:2"


def test_an_empty_variable_is_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "state_dir: /s\nredis_url: redis://h:1/0\nstorage: {address: '127.0.0.1:1'}\n")
    for name in ("MODYN_STATE_DIR", "MODYN_REDIS_URL", "MODYN_STORAGE__ADDRESS", "MODYN_STORAGE__NUM_THREADS", "MODYN_CONFIG"):
        monkeypatch.setenv(name, "")
    config = load_system_config(path)
    assert (config.state_dir, config.redis_url, config.storage.address) == (Path("/s"), "redis://h:1/0", "127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    assert load_system_config().state_dir == tmp_path / ".modyn"


def test_the_environment_may_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODYN_CONFIG", str(written(tmp_path, "selector: {log_level: debug}\n")))
    assert load_system_config().selector.log_level == "debug"


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_system_config(written(tmp_path, "")).storage == SystemConfig().storage


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("storge: {}", r"storge: there is no such key, did you mean 'storage'\? Allowed: alerts, cache, database_url"),
        ("storage: {num_thread: 1}", r"storage\.num_thread: there is no such key, did you mean 'num_threads'"),
        ("storage: {num_threads: 0}", r"storage\.num_threads: 0 is wrong: input should be greater than or equal to 1"),
        ("state_dir: ''", r"state_dir: it is empty; name a folder, or leave it out"),
        ("storage: {num_threads: many}", r"storage\.num_threads: 'many' is wrong"),
        ("storage: {address: localhost}", r"storage\.address: 'localhost' is not an address; write host:port"),
        ("storage: {address: 'h:70000'}", r"storage\.address: 'h:70000' is not an address"),
        ("storage: {datasets: [{name: 'a b', base_path: /x, file_wrapper: F}]}", r"storage\.datasets\.0\.name: 'a b' is wrong"),
        (
            "storage: {datasets: [{name: a, base_path: 'ftp://KEY:hush@b/x', file_wrapper: F}]}",
            r"storage\.datasets\.0: base_path begins with ftp:/, which is not a known scheme; write s3://BUCKET/PREFIX",
        ),
        ("storage: {datasets: [{name: a, base_path: '', file_wrapper: F}]}", r"storage\.datasets\.0\.base_path: '' is wrong"),
        ("security: {token: short}", r"security\.token"),
        (
            "alerts: {webhook_url: 'ftp://hush'}",
            r"alerts\.webhook_url: write https://host/path or http://host:port/path, [^/]*$",
        ),
        (
            "alerts: {webhook_secret: hush}",
            r"alerts\.webhook_secret: the secret has fewer than 16 characters; choose a longer one$",
        ),
        ("alerts: {apprise_urls: 'slack://hush'}", r"alerts\.apprise_urls: write a list of addresses, each as text$"),
        ("alerts: {smtp_address: 'h:25'}", r"alerts: smtp_address needs mail_from and mail_to"),
        ("alerts: {smtp_security: none, smtp_user: u}", r"alerts: smtp_user needs smtp_security starttls or tls"),
        ("alerts: {kinds: [late]}", r"alerts\.kinds\.0: 'late' is wrong: .*'failed', 'stalled', 'finished' or 'degraded'"),
        ("security: {tls_cert: /c}", r"security: tls_cert and tls_key belong together"),
        ("security: {token: 0123456789abcdef, token_file: /t}", r"security: set token or token_file, not both"),
        ("[1, 2]", r":1: is not a mapping of sections"),
        ("a: [1", r":1: .*not valid YAML"),
        ("storage: {num_threads: true}", r"storage\.num_threads: true is a boolean; a whole number is expected"),
        ("storage: {num_threads: 1}\nselector: {}\nstorage: {}\n", r"storage: is given twice, on lines 1 and 3; remove one"),
        ("storage: {num_threads: 1, num_threads: 2}", r"storage\.num_threads: is given twice, on lines 1 and 1"),
    ],
)
def test_a_mistake_names_file_place_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_system_config(path)
    assert str(path) in caught.value.message


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_system_config(written(tmp_path, "security: {token: hush-hush}"))
    assert "hush-hush" not in caught.value.message
    assert "0123456789abcdef" not in repr(SecurityConfig(token="0123456789abcdef"))
    shown = repr(SystemConfig(database_url="postgresql://modyn:hidden@host/name", redis_url="redis://:hidden@host/0"))
    assert "hidden" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hush@example.org/x",
        "https://hush@example.org/x",
        "https://example.org:hush/x",
        "https://example.org/hush hush",
        "https://example.org/hush\n",
        "https://example.org/hüsh/hush",
        "https://hüsh.example.org/hush",
    ],
)
def test_the_address_of_a_webhook_that_cannot_work_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("MODYN_ALERTS__WEBHOOK_URL", url)
    with pytest.raises(ConfigError, match=r"alerts\.webhook_url: write https://") as caught:
        load_system_config()
    assert not re.search("h[uü]sh", caught.value.message)


@pytest.mark.parametrize("url", ["https://example.org", "http://[::1]:80/a?b=c%20d#e", "http://my_host.x-y:8080?a=b@c"])
def test_the_address_of_a_webhook_may_have_port_path_and_query(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("MODYN_ALERTS__WEBHOOK_URL", url)
    assert load_system_config().alerts.webhook_url == url


def test_a_mistake_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODYN_STORAGE__NUM_THREADS", "0")
    with pytest.raises(ConfigError, match=r"storage\.num_threads: '0' is wrong"):
        load_system_config()


def test_a_list_in_the_environment_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODYN_ALERTS__APPRISE_URLS", "slack://hush")
    with pytest.raises(ConfigError, match=r'field "alerts".* must be JSON, for example') as caught:
        load_system_config()
    assert "hush" not in str(caught.value)
    monkeypatch.setenv("MODYN_ALERTS__APPRISE_URLS", '["slack://hush"]')
    alerts = load_system_config().alerts
    assert alerts.apprise_urls == ("slack://hush",)
    assert "hush" not in repr(alerts)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("MODYN_STORGE__ADDRESS", "MODYN_STORAGE__ADDRESS"),
        ("MODYN_STORAGE__ADRESS", "MODYN_STORAGE__ADDRESS"),
        ("MODYN_DATABSE_URL", "MODYN_DATABASE_URL"),
        ("MODYN_LOGS_MAX_BYTES", "MODYN_LOGS__MAX_BYTES"),
        ("MODYN_CONFG", "MODYN_CONFIG"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch, name: str, right: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=rf"environment: {name} .*did you mean '{right}'"):
        load_system_config()


COMPOSE_VARIABLES = sorted(set(re.findall(r"\$\{(MODYN_\w+)", (Path(__file__).parents[2] / "docker-compose.yml").read_text())))


@pytest.mark.parametrize(
    "name",
    [
        "MODYN_SERVICE_HOST", "MODYN_STORAGE_SERVICE_PORT_GRPC", "MODYN_PORT", "MODYN_STORAGE_PORT_50051_TCP_ADDR",
        "MODYN_TESTS_NO_SKIP", *COMPOSE_VARIABLES,
    ],
)  # fmt: skip
def test_variables_of_kubernetes_and_of_the_compose_file_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = load_system_config()
    monkeypatch.setenv(name, "1")
    assert load_system_config() == before


def test_words_of_yaml_stay_words(tmp_path: Path) -> None:
    config = load_system_config(
        written(tmp_path, "storage: {short_cut: on, datasets: [{name: a, base_path: /x, file_wrapper: F, watch: no}]}")
    )
    assert config.storage.short_cut == "on"
    assert not config.storage.datasets[0].watch


@pytest.mark.parametrize("name", ["missing.yaml", "folder"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=rf"cannot read the system configuration {tmp_path / name}"):
        load_system_config(tmp_path / name)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match=r"b\.yaml"):
        load_system_config(tmp_path / "b.yaml")


@given(st.lists(st.text("abcü", min_size=1, max_size=40), max_size=12))
def test_socket_paths_are_short_however_deep_the_state_lies(parts: list[str]) -> None:
    config = SystemConfig(state_dir=Path("/", *parts))
    for name in (*SERVICES, "flight"):
        # 107 bytes are what the kernel allows.
        assert len(os.fsencode(config.endpoint(name).address.removeprefix("unix:"))) <= 107


def test_two_deep_state_folders_do_not_share_sockets() -> None:
    deep = Path("/", *["x" * 30] * 5)
    assert SystemConfig(state_dir=deep / "a").run_dir != SystemConfig(state_dir=deep / "b").run_dir


def test_the_embedded_database_is_found_where_it_wrote_its_url(tmp_path: Path) -> None:
    config = SystemConfig(state_dir=tmp_path)
    with pytest.raises(UnavailableError, match=r"no postgres is running.*modyn up.*database_url"):
        config.resolved_database_url()
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "url").write_text("postgresql://here\n")
    assert config.resolved_database_url() == "postgresql://here"


def test_a_token_file_is_read_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    security = SecurityConfig(token_file=path)
    with pytest.raises(ConfigError, match=rf"cannot read {path}"):
        security.secret()
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="fewer than 16 characters"):
        security.secret()
    path.write_text("0123456789abcdef\n")
    assert security.secret() == "0123456789abcdef"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1"])
def test_loopback_is_this_machine(address: str) -> None:
    assert Endpoint(address=address).is_local


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "10.0.0.1", "[::]", "example.org", "localhost.example.org", "127.evil.example", "127.1"]
)
def test_anything_else_is_not(host: str) -> None:
    assert not Endpoint(address=f"{host}:1").is_local


def test_dataset_names_are_safe_as_file_names() -> None:
    for name in ("../x", "a/b", "", ".hidden", "a" * 101):
        with pytest.raises(ValueError, match="name"):
            DatasetConfig(name=name, base_path=Path("/x"), file_wrapper="F")


def test_what_needs_no_database_gets_no_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODYN_ALERTS__WEBHOOK_SECRET", "hush" * 4)
    monkeypatch.setenv("MODYN_ALERTS__SMTP_PASSWORD", "hush")
    config = load_system_config(written(tmp_path, "database_url: 'postgresql://u:hush@h/d'\n"))
    assert (config.alerts.webhook_secret, config.alerts.smtp_password) == ("hush" * 4, "hush")
    assert "hush" not in repr(config.alerts)
    assert "hush" not in config.without_databases().model_dump_json()


def test_the_password_of_redis_may_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    config = SystemConfig(state_dir=tmp_path, redis_url="redis://host:7000/1", redis_password_file=file)
    assert config.resolved_redis_url() is None, "it cannot be read"
    file.write_text("a/b#c\n")
    assert config.resolved_redis_url() == "redis://:a%2Fb%23c@host:7000/1"
    assert "a%2F" not in repr(config)
    assert config.without_databases().redis_password_file is None


def test_the_embedded_redis_is_found_while_it_runs(tmp_path: Path) -> None:
    config = SystemConfig(state_dir=tmp_path)
    assert config.resolved_redis_url() is None
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "url").write_text("unix:///run/redis.sock")
    assert config.resolved_redis_url() == "unix:///run/redis.sock"
