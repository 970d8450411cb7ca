"""Alerts reach a real web server and a real mail server, again after a refusal that may pass, and never hold up what reports them."""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import threading
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from modyn.config.system_sections.alerts import AlertsConfig
from modyn.errors import ConfigError, ModynError, UnavailableError
from modyn.rpc.retry import RetryPolicy
from modyn.supervisor.alerts.channels import Alert, AlertQueue, Mail, Webhook, channels
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.receivers import mail_receiver, web_receiver

SECRET = "a secret of the test"
ALERT = Alert("1f", "failed", "digits-0007", "Ziffern äöü", "failed", 1_700_000_000.0, "no such file: '/data/x'\nsecond line")
QUICK = RetryPolicy(PATIENCE_S, first_pause_s=0.01, longest_pause_s=0.02)


def counted(channel: str, outcome: str) -> float:
    return REGISTRY.get_sample_value("modyn_supervisor_alerts_total", {"channel": channel, "outcome": outcome}) or 0.0


def mail_config(address: str, **options: object) -> AlertsConfig:
    receivers = ("a@example.org", "b@example.org")
    plain = {"smtp_address": address, "smtp_security": "none", "mail_from": "modyn@example.org", "mail_to": receivers}
    return AlertsConfig.model_validate(plain | options)


def test_a_webhook_is_json_with_a_signature_over_time_and_body() -> None:
    with web_receiver() as web:
        Webhook(web.url, SECRET).send(ALERT)
        [(headers, body)] = web.received
    expected = {"id": "1f", "kind": "failed", "run_id": "digits-0007", "pipeline": "Ziffern äöü", "state": "failed"}
    assert json.loads(body) == expected | {"time": 1_700_000_000.0, "message": "no such file: '/data/x'\nsecond line"}
    signed = hmac.new(SECRET.encode(), headers["x-modyn-time"].encode() + b"." + body, hashlib.sha256)
    assert headers["x-modyn-signature"] == f"sha256={signed.hexdigest()}"
    assert (headers["x-modyn-id"], headers["content-type"]) == ("1f", "application/json")


@pytest.mark.parametrize(("status", "error"), [(500, UnavailableError), (429, UnavailableError), (404, ModynError)])
def test_what_a_webhook_answers_says_whether_to_try_again(status: int, error: type[ModynError]) -> None:
    with web_receiver() as web:
        web.answers = [status]
        with pytest.raises(error, match=f"the webhook answered {status}") as caught:
            Webhook(web.url, SECRET).send(ALERT)
    assert isinstance(caught.value, UnavailableError) == (error is UnavailableError)


def test_a_webhook_follows_no_redirect() -> None:
    with web_receiver() as web:
        web.answers = [302]
        with pytest.raises(ModynError, match="the webhook answered 302"):
            Webhook(web.url, SECRET).send(ALERT)
        assert web.requests == 1


@pytest.mark.parametrize("url", ["https://user:hush@127.0.0.1/x", "https://127.0.0.1/hush hush", "https://127.0.0.1:1/hüsh"])
def test_an_address_that_cannot_work_is_neither_tried_again_nor_shown(url: str) -> None:
    with pytest.raises(ModynError, match=r"correct alerts\.webhook_url") as caught:
        Webhook(url, SECRET).send(ALERT)
    assert not isinstance(caught.value, UnavailableError)
    assert "hush" not in caught.value.message
    assert caught.value.__cause__ is None


def test_a_mail_names_run_and_reason() -> None:
    with mail_receiver() as mail:
        Mail(mail_config(mail.address)).send(ALERT)
        [(receivers, message)] = mail.received
    assert receivers == ["a@example.org", "b@example.org"]
    assert (message["Subject"], message["Message-ID"]) == ("[modyn] run digits-0007: failed", "<1f@example.org>")
    text = message.get_payload(decode=True)
    assert isinstance(text, bytes)
    assert text.decode().splitlines() == [
        *("run: digits-0007", "pipeline: Ziffern äöü", "state: failed", "time: 2023-11-14 22:13:20 UTC"),
        *("", "no such file: '/data/x'", "second line"),
    ]


def test_a_mail_server_that_puts_off_is_asked_again_and_one_that_refuses_is_not() -> None:
    with mail_receiver() as mail:
        channel = Mail(mail_config(mail.address))
        mail.answers = ["451 later", "550 never"]
        with pytest.raises(UnavailableError, match="answered 451 later"):
            channel.send(ALERT)
        with pytest.raises(ModynError, match="answered 550 never") as caught:
            channel.send(ALERT)
    assert not isinstance(caught.value, UnavailableError)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        channel.send(ALERT)


def test_neither_password_nor_mail_is_sent_in_the_clear_unless_configured() -> None:
    with mail_receiver() as mail:
        config = mail_config(mail.address, smtp_security="starttls", smtp_user="u", smtp_password="hush")
        with pytest.raises(ModynError, match="STARTTLS"):
            Mail(config).send(ALERT)
        assert set(mail.commands) <= {"EHLO", "QUIT"}
        assert mail.received == []


@pytest.mark.parametrize(("status", "error"), [(500, UnavailableError), (429, UnavailableError), (403, ModynError)])
def test_a_service_of_apprise_gets_the_alert_and_its_answer_says_whether_to_try_again(
    status: int, error: type[ModynError], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with web_receiver() as web:
        [channel] = channels(AlertsConfig(apprise_urls=(web.url.replace("http:", "json:") + "/hush",)))
        channel.send(ALERT)
        [(_, body)] = web.received
        web.answers = [status]
        with pytest.raises(error, match=f"^json answered {status}") as caught:
            channel.send(ALERT)
    assert isinstance(caught.value, UnavailableError) == (error is UnavailableError)
    received = json.loads(body)
    assert (received["title"], received["type"]) == ("[modyn] run digits-0007: failed", "failure")
    assert received["message"].splitlines()[-2:] == ["no such file: '/data/x'", "second line"]
    with pytest.raises(UnavailableError, match="json cannot be reached"):
        channel.send(ALERT)
    assert "hush" not in caplog.text + "".join(capfd.readouterr())


def test_an_alert_is_sent_again_until_it_arrives() -> None:
    before = counted("webhook", "sent")
    with web_receiver() as web:
        web.answers = [503, 500]
        queue = AlertQueue(Webhook(web.url, SECRET), QUICK)
        queue.put(ALERT)
        queue.put(replace(ALERT, id="2f"))
        eventually(lambda: len(web.received) == 2)
        queue.close(PATIENCE_S)
        assert [headers["x-modyn-id"] for headers, _ in web.received] == ["1f", "2f"]
        assert web.requests == 4
    assert counted("webhook", "sent") == before + 2


class Stuck:
    """A channel that answers nothing until it is released, and then fails."""

    name = "stuck"

    def __init__(self) -> None:
        self.asked, self.released = threading.Event(), threading.Event()

    def send(self, alert: Alert) -> None:
        self.asked.set()
        assert self.released.wait(PATIENCE_S)
        raise RuntimeError("broken")


def test_a_channel_that_hangs_holds_up_nothing_and_what_does_not_fit_is_counted() -> None:
    channel = Stuck()
    queue = AlertQueue(channel, QUICK, queued=2)
    queue.put(ALERT)
    assert channel.asked.wait(PATIENCE_S)
    for _ in range(5):
        queue.put(ALERT)
    assert counted("stuck", "dropped") == 3
    channel.released.set()
    queue.close(PATIENCE_S)
    assert counted("stuck", "failed") == 3


def test_closing_waits_for_no_longer_than_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, waited = Stuck(), list[float]()
    queue = AlertQueue(channel, QUICK)
    queue.put(ALERT)
    assert channel.asked.wait(PATIENCE_S)
    with monkeypatch.context() as patched:
        patched.setattr(queue._thread, "join", waited.append)
        queue.close(4.0)
    channel.released.set()
    queue.close(PATIENCE_S)
    assert sum(waited) == 4.0


def test_closing_gives_up_what_cannot_be_sent() -> None:
    with web_receiver() as web:
        web.answers = [500] * 1000
        queue = AlertQueue(Webhook(web.url, SECRET), RetryPolicy(600.0, first_pause_s=600.0))
        before = counted("webhook", "failed")
        queue.put(ALERT)
        eventually(lambda: web.requests)
        queue.close(0.01)
        eventually(lambda: counted("webhook", "failed") == before + 1)


def test_a_missing_secret_is_refused_where_alerts_are_sent() -> None:
    with pytest.raises(ConfigError, match="MODYN_ALERTS__WEBHOOK_SECRET"):
        channels(AlertsConfig(webhook_url="https://example.org/hook"))
    with pytest.raises(ConfigError, match="MODYN_ALERTS__SMTP_PASSWORD"):
        channels(mail_config("localhost:25", smtp_security="tls", smtp_user="u"))
    assert channels(AlertsConfig()) == []


def test_an_address_of_no_service_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages do not show the address, which holds a secret."""
    config = AlertsConfig(apprise_urls=("json://localhost/x", "slak://hush"))
    with pytest.raises(
        ConfigError, match=r"^alerts\.apprise_urls\.1: Apprise knows no service with this address[^/]*https://appriseit"
    ):
        channels(config)
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ConfigError, match=r"^alerts\.apprise_urls\.0: needs Apprise; pip install 'modyn\[alerts\]' where the"):
        channels(config)
