"""Clients of buckets: which one a URL means, whose credentials it has, how long it tries, what its errors say, and what a fork does to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from obstore.exceptions import GenericError
from obstore.store import AzureStore, GCSStore, S3Store

from modyn._core import PathTable
from modyn.errors import ConfigError, DataError, ModynError, NotFoundError, SecurityError, UnavailableError
from modyn.storage.files.aws_profile import AwsProfile
from modyn.storage.files.bucket import BucketFiles
from modyn.storage.files.bucket_store import StoreLimits, open_store, reason_of
from modyn.storage.files.bucket_url import BucketUrl
from modyn.storage.files.file_system import NameEndings, Roots, UnusableNowError
from modyn.storage.formats import build_format
from modyn.storage.model.file_table import FileTable
from modyn.storage.read.record_readers import RecordReaders
from tests.support.s3_proxy import S3Proxy, proxied
from tests.support.s3_server import CREDENTIALS, S3Server

QUICK = StoreLimits(connect_s=1, read_s=1, answer_s=1, retries=1)
NO_SUCH_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist</Message></Error>"
DENIED = (
    b"<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match.</Message>"
    b"<AWSAccessKeyId>AKIATEST</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256 GEHEIM</StringToSign></Error>"
)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def server() -> Iterator[S3Proxy]:
    """A server that answers as a test says."""
    with proxied("127.0.0.1:9") as proxy:
        yield proxy


def opened(server: S3Proxy) -> BucketFiles:
    return BucketFiles(S3Server(server.address).url("bucket/rows"), QUICK)


# Errors


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((404, NO_SUCH_BUCKET), NotFoundError, "there is no bucket 'bucket'; create it or correct base_path"),
        (
            (403, DENIED),
            SecurityError,
            "refuses the credentials of storage .403 Forbidden: SignatureDoesNotMatch: The signature does not",
        ),
        ((401, b""), SecurityError, "correct them in its environment"),
        (
            (503, b"<Code>SlowDown</Code>"),
            UnavailableError,
            "503 Service Unavailable.*check network, region, endpoint and credentials",
        ),
        ((301, b"<Code>PermanentRedirect</Code>"), UnavailableError, "check network, region"),
    ],
)
def test_a_bucket_that_cannot_be_listed_says_why(
    server: S3Proxy, answer: tuple[int, bytes], kind: type[ModynError], message: str
) -> None:
    server.answer = answer
    for look in (
        lambda: opened(server).check(Roots()),
        lambda: opened(server).list_files(NameEndings(".csv"), Roots(), FileTable()),
    ):
        with pytest.raises(kind, match=f"s3://bucket/rows.*{message}") as caught:
            look()
        assert type(caught.value) is kind
        for secret in ("GEHEIM", "AKIATEST", "test-secret", "list-type"):
            assert secret not in caught.value.message
    assert len(server.take()) == 2 * (QUICK.retries + 1 if answer[0] == 503 else 1), "what may pass is tried again"


def test_a_server_that_does_not_answer_is_an_outage() -> None:
    gone = BucketFiles(S3Server("127.0.0.1:9").url("bucket/rows"), QUICK)
    with pytest.raises(UnavailableError, match="check network, region, endpoint and credentials"):
        gone.check(Roots())
    with pytest.raises(UnavailableError, match="cannot read s3://bucket/rows/a at byte 7: .*try again, and check network"):
        gone.read("s3://bucket/rows/a", 7, 8)


def test_a_server_that_hangs_is_an_outage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        files = BucketFiles(S3Server(f"127.0.0.1:{deaf.getsockname()[1]}").url("bucket"), StoreLimits(read_s=0.1, retries=1))
        with pytest.raises(UnavailableError, match="check network, region, endpoint and credentials"):
            files.check(Roots())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [((503, b""), UnavailableError), ((403, DENIED), UnusableNowError), ((404, b""), DataError)],
)
@pytest.mark.parametrize("kind_of_file", ["csv", "parquet"])
def test_payloads_tell_trouble_with_the_server_from_a_bad_object(
    server: S3Proxy, kind_of_file: str, answer: tuple[int, bytes], kind: type[Exception]
) -> None:
    server.answer = answer
    options = {"payload_columns": ["data"], "label_column": "label"}
    file_format = (
        build_format("ParquetFileWrapper", options)
        if kind_of_file == "parquet"
        else build_format("CsvFileWrapper", {"label_index": 0})
    )
    paths = PathTable("s3://bucket/rows")
    paths.append_packed(np.frombuffer(b"a.file", np.uint8), np.array([6]))
    reader = RecordReaders(num_threads=1).open_format(file_format, opened(server), paths)
    with pytest.raises(kind, match="cannot read s3://bucket/rows/a.file") as caught:
        reader.gather(np.zeros(1, np.uint32), np.zeros(1, np.int64), 1)
    assert isinstance(caught.value, UnavailableError) == (answer[0] == 503)
    assert "GEHEIM" not in str(caught.value)


def test_a_reason_is_one_short_line_without_queries_of_urls() -> None:
    url = "https://a.blob.core.windows.net/c/x?sv=2024&sig=GEHEIM"
    text = f"Generic Azure error: Error performing GET {url} in 3s, after 2 retries - connection closed\n\nDebug source:\n{url}"
    assert reason_of(GenericError(text)) == (
        "Generic Azure error: Error performing GET https://a.blob.core.windows.net/c/x in 3s, after 2 retries - connection closed"
    )
    assert len(reason_of(GenericError("x" * 1000))) == 301


# Clients


def test_a_url_means_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure is known by this alone: there is no server of its kind for tests."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "R0VIRUlN")
    store = open_store(BucketUrl.parse("az://box/rows?account=corp"), StoreLimits(retries=2))
    assert isinstance(store, AzureStore)
    assert (store.config["container_name"], store.config["account_name"]) == ("box", "corp")
    assert store.prefix is None
    assert store.retry_config is not None
    assert store.retry_config["max_retries"] == 2
    local = open_store(BucketUrl.parse("az://box?account=corp&endpoint_override=127.0.0.1:10000/corp&scheme=http"), QUICK)
    assert isinstance(local, AzureStore)
    assert local.config["endpoint"] == "http://127.0.0.1:10000/corp"
    with pytest.raises(ConfigError, match="az://box/rows cannot be used: .*[Aa]ccount.*check its options and the environment"):
        open_store(BucketUrl.parse("az://box/rows"), QUICK)
    google = open_store(BucketUrl.parse("gs://box?anonymous=true&endpoint_override=127.0.0.1:1&scheme=http"), QUICK)
    assert isinstance(google, GCSStore)
    assert google.config["base_url"] == "http://127.0.0.1:1"
    amazon = open_store(BucketUrl.parse("s3://box?region=eu-central-1"), QUICK)
    assert isinstance(amazon, S3Store)
    assert (amazon.config["bucket"], amazon.config["region"]) == ("box", "eu-central-1")
    assert amazon.client_options is not None
    assert amazon.client_options["allow_http"] in {False, "false"}


def test_without_obstore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    files = BucketFiles("s3://bucket/rows")
    files.check_roots(Roots())
    for look in (lambda: files.check(Roots()), lambda: files.read("s3://bucket/rows/a")):
        with pytest.raises(ConfigError, match=r"s3://bucket/rows needs obstore.*pip install 'modyn\[buckets\]'"):
            look()


# Credentials of AWS


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = KEY\naws_secret_access_key = GEHEIM\n[other]\naws_access_key_id=K2\naws_secret_access_key=G%2\n"
        "aws_session_token=T\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion = eu-north-1\n[profile other]\nregion=eu-west-3\n[profile role]\nrole_arn=x\n"
    )
    return tmp_path


def test_keys_come_from_the_environment_or_else_from_a_profile(home: Path, tmp_path: Path) -> None:
    environment = {"HOME": str(home)}
    profile = AwsProfile.of(environment)
    assert profile is not None
    keys = profile()
    assert (keys["access_key_id"], keys["secret_access_key"], keys["token"], profile.region) == (
        "KEY",
        "GEHEIM",
        None,
        "eu-north-1",
    )
    other = AwsProfile.of({**environment, "AWS_PROFILE": "other", "AWS_WEB_IDENTITY_TOKEN_FILE": "x"})
    assert other is not None
    assert (other()["secret_access_key"], other()["token"], other.region) == ("G%2", "T", "eu-west-3")
    assert AwsProfile.of({**environment, "AWS_ACCESS_KEY_ID": "K", "AWS_PROFILE": "other"}) is None
    assert AwsProfile.of({**environment, "AWS_WEB_IDENTITY_TOKEN_FILE": "x"}) is None
    assert AwsProfile.of({"HOME": str(tmp_path / "nobody")}) is None
    for name in ("role", "missing"):
        with pytest.raises(ConfigError, match=f"the AWS profile '{name}' has no aws_access_key_id.*export-credentials"):
            AwsProfile.of({**environment, "AWS_PROFILE": name})
    (home / ".aws" / "credentials").write_text("GEHEIM\n")
    with pytest.raises(ConfigError, match="is not a file of AWS profiles") as caught:
        profile()
    assert "GEHEIM" not in caught.value.message


def test_a_file_of_keys_that_cannot_be_read_is_not_passed_over(home: Path) -> None:
    (home / ".aws" / "credentials").unlink()
    (home / ".aws" / "credentials").mkdir()
    with pytest.raises(ConfigError, match="credentials cannot be read: Is a directory"):
        AwsProfile.of({"HOME": str(home)})


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_file_of_profiles_that_is_not_needed_may_be_unreadable(
    home: Path, monkeypatch: pytest.MonkeyPatch, anonymous: bool
) -> None:
    (home / ".aws" / "config").unlink()
    (home / ".aws" / "config").mkdir()
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("HOME", str(home))
    if not anonymous:
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "token")
        monkeypatch.setenv("AWS_ROLE_ARN", "role")
    assert isinstance(open_store(BucketUrl.parse(f"s3://box{'?anonymous=true' * anonymous}"), QUICK), S3Store)


def test_a_profile_signs_requests(server: S3Proxy, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    store = open_store(BucketUrl.parse("s3://box"), QUICK)
    assert isinstance(store, S3Store)
    assert store.config["region"] == "eu-north-1"
    server.answer = 200, b"<ListBucketResult></ListBucketResult>"
    files = BucketFiles(f"s3://box?endpoint_override={server.address}&scheme=http", QUICK)
    files.check(Roots())
    assert "Credential=KEY/" in (server.take()[0].authorization or "")


@pytest.mark.parametrize("option", ["", "?anonymous=true"])
def test_the_region_is_the_profiles_wherever_the_keys_come_from(home: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    for profile, region in (("", "eu-north-1"), ("other", "eu-west-3")):
        monkeypatch.setenv("AWS_PROFILE", profile)
        monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
        store = open_store(BucketUrl.parse(f"s3://box{option}"), QUICK)
        assert isinstance(store, S3Store)
        assert store.config["region"] == region


def test_a_default_profile_whose_keys_come_from_elsewhere_is_not_passed_over(home: Path) -> None:
    environment = {"HOME": str(home)}
    (home / ".aws" / "credentials").unlink()
    assert AwsProfile.of(environment) is None, "a region alone: the keys are the machine's"
    for setting in ("role_arn", "credential_process", "sso_session"):
        (home / ".aws" / "config").write_text(f"[default]\n{setting} = x\n")
        with pytest.raises(ConfigError, match="the AWS profile 'default' has no aws_access_key_id.*export-credentials"):
            AwsProfile.of(environment)
        assert AwsProfile.of({**environment, "AWS_WEB_IDENTITY_TOKEN_FILE": "x"}) is None


# Forks


_IN_A_FRESH_PROCESS = """
import multiprocessing, sys
from modyn.errors import ModynError
from modyn.storage.files.bucket import BucketFiles

files = BucketFiles(sys.argv[1])

def read():
    try:
        return bytes(files.read("s3://bucket/rows/a")).decode()
    except ModynError as error:
        return f"{type(error).__name__}: {error.message}"

def in_child(look):
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: there.send(look()))
    child.start()
    answered = here.poll(60)
    child.kill()
    child.join()
    return here.recv() if answered else "no answer"

print(in_child(read), read(), in_child(read), read(), sep="\\n")
"""


def test_a_child_has_a_client_of_its_own_and_says_so_if_it_cannot(server: S3Proxy) -> None:
    """The test needs a process that has not used a bucket: obstore has one set of threads in a process, which a child lacks."""
    server.answer = 200, b"12345"
    command = [sys.executable, "-c", _IN_A_FRESH_PROCESS, S3Server(server.address).url("bucket/rows")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150).stdout.splitlines()
    refused = (
        "UnavailableError: s3://bucket/rows cannot be read in this process: it was forked from one that had read from a bucket"
    )
    assert [line.partition(", and has none")[0] for line in found] == ["12345", "12345", refused, "12345"]
