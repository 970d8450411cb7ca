"""Channels that send alerts to other systems: webhooks and e-mail, each with a thread of its own and a bounded queue."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import smtplib
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from contextlib import closing
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from typing import IO, Any, Protocol

from prometheus_client import Counter

from modyn.config.alerts import AlertKind, AlertsConfig
from modyn.errors import CancelledError, ConfigError, ModynError, UnavailableError
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy

TIMEOUT_S = 10.0
"""For one answer of the other side."""
QUEUED = 100
"""Alerts that wait at one channel; what comes then is dropped, and counted."""
RETRIES = RetryPolicy(600.0, first_pause_s=1.0, longest_pause_s=60.0)
CLOSE_S = 2.0
"""The time that waiting alerts get when the supervisor stops."""

ALERTS = Counter("modyn_supervisor_alerts", "Alerts by channel and outcome: sent, failed, dropped", ["channel", "outcome"])

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class Alert:
    """What is reported of a run."""

    id: str
    """The same each time that this alert is sent again."""
    kind: AlertKind
    run_id: str
    pipeline: str
    state: str
    """State of the run now."""
    time: float
    """Seconds since 1970 at which it happened."""
    message: str


class AlertChannel(Protocol):
    """One way out."""

    @property
    def name(self) -> str:
        """In logs and metrics."""

    def send(self, alert: Alert) -> None:
        """Send an alert. Raises: UnavailableError: again later. ModynError: the other side refuses it for good."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leave a redirect as it is: a POST would become a GET, and the alert would go where the configuration does not name."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> None:
        """Follow none."""


class Webhook:
    """POST of an alert as JSON, with the time and an HMAC-SHA256 over time and body. Any status 2xx is success."""

    name = "webhook"

    def __init__(self, url: str, secret: str) -> None:
        """Args: secret: key of the HMAC, which the receiver knows."""
        self._url = url
        self._secret = secret.encode()
        self._opener = urllib.request.build_opener(_NoRedirects)

    def send(self, alert: Alert) -> None:
        """Send it. Raises: as `AlertChannel.send`; messages do not show the URL, which may hold a secret."""
        body, now = json.dumps(asdict(alert)).encode(), str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "modyn",
            "X-Modyn-Id": alert.id,
            "X-Modyn-Time": now,
            "X-Modyn-Signature": f"sha256={signature(self._secret, now, body)}",
        }
        try:
            self._opener.open(urllib.request.Request(self._url, body, headers, method="POST"), timeout=TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            error.close()
            text = f"the webhook answered {error.code} {error.reason}"
            if error.code >= 500 or error.code in (408, 425, 429):
                raise UnavailableError(text) from error
            raise ModynError(f"{text}; correct alerts.webhook_url or its receiver") from error
        except (http.client.InvalidURL, UnicodeError):  # Their messages show parts of the URL.
            raise ModynError("no request can be sent to the address of the webhook; correct alerts.webhook_url") from None
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"the webhook cannot be reached: {error}") from error


def signature(secret: bytes, now: str, body: bytes) -> str:
    """Return the hexadecimal HMAC-SHA256 of the text of `X-Modyn-Time`, a dot and the body."""
    return hmac.new(secret, f"{now}.".encode() + body, hashlib.sha256).hexdigest()


class Mail:
    """An e-mail for each alert. Where encryption is configured, nothing is sent without it."""

    name = "mail"

    def __init__(self, config: AlertsConfig) -> None:
        self._config = config

    def send(self, alert: Alert) -> None:
        """Send it. Raises: as `AlertChannel.send`."""
        try:
            with closing(self._connect()) as server:  # without QUIT: an error of it would send the e-mail twice
                refused = server.send_message(self._message(alert))
        except smtplib.SMTPResponseException as error:
            answer = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            text = f"the mail server {self._config.smtp_address} answered {error.smtp_code} {answer}"
            raise (UnavailableError(text) if error.smtp_code < 500 else ModynError(text)) from error
        except (smtplib.SMTPRecipientsRefused, smtplib.SMTPNotSupportedError) as error:
            codes = [code for code, _ in getattr(error, "recipients", {}).values()]
            if any(code < 500 for code in codes):  # A server that greylists takes the e-mail later.
                raise UnavailableError(f"the mail server {self._config.smtp_address} postpones the delivery: {error}") from error
            raise ModynError(
                f"the mail server {self._config.smtp_address} refuses: {error}; correct the section alerts"
            ) from error
        except OSError as error:  # also what smtplib raises beside
            raise UnavailableError(f"the mail server {self._config.smtp_address} cannot be reached: {error}") from error
        if refused:
            _LOG.warning("mail_receivers_refused", receivers=sorted(refused))

    def _connect(self) -> smtplib.SMTP:
        host, port = str(self._config.smtp_address).rsplit(":", 1)
        host, security = host.strip("[]"), self._config.smtp_security
        if security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, int(port), timeout=TIMEOUT_S, context=ssl.create_default_context())
        else:
            server = smtplib.SMTP(host, int(port), timeout=TIMEOUT_S)
        try:
            if security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if self._config.smtp_user:
                server.login(self._config.smtp_user, self._config.smtp_password or "")
        except BaseException:
            server.close()
            raise
        return server

    def _message(self, alert: Alert) -> EmailMessage:
        message, sender = EmailMessage(), str(self._config.mail_from)
        message["From"], message["To"] = sender, ", ".join(self._config.mail_to)
        message["Subject"] = f"[modyn] run {alert.run_id}: {alert.kind}"
        message["Message-ID"] = f"<{alert.id}@{sender.rpartition('@')[2]}>"
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(alert.time))
        facts = {"run": alert.run_id, "pipeline": alert.pipeline, "state": alert.state, "time": when}
        message.set_content("\n".join([*(f"{name}: {value}" for name, value in facts.items()), "", alert.message]))
        return message


def channels(config: AlertsConfig) -> list[AlertChannel]:
    """Return the configured channels. Raises ConfigError: a secret is missing."""
    found: list[AlertChannel] = []
    if config.webhook_url is not None:
        if config.webhook_secret is None:
            raise ConfigError(
                "alerts.webhook_url: webhooks are signed; set their key, MODYN_ALERTS__WEBHOOK_SECRET, where the supervisor runs"
            )
        found.append(Webhook(config.webhook_url, config.webhook_secret))
    if config.smtp_address is not None:
        if config.smtp_user and not config.smtp_password:
            raise ConfigError(
                "alerts.smtp_user: a login needs its password; set MODYN_ALERTS__SMTP_PASSWORD where the supervisor runs"
            )
        found.append(Mail(config))
    return found


class Outbox:
    """Sends the alerts of one channel, in order, and each again while it may help. `put` never waits.

    Args: queued: alerts that may wait; more are dropped.
    """

    def __init__(self, channel: AlertChannel, retries: RetryPolicy = RETRIES, queued: int = QUEUED) -> None:
        self._channel = channel
        self._queued = queued
        self._token = CancellationToken()
        self._retrier = Retrier(
            retries, self._token, lambda reason: _LOG.warning("alert_waits", channel=channel.name, reason=reason)
        )
        self._changed = threading.Condition()  # Guards the two fields below.
        self._waiting: deque[Alert] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._send_all, name=f"alerts-{channel.name}", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Queue an alert; it is dropped, and counted, where too many wait."""
        with self._changed:
            kept = len(self._waiting) < self._queued and not self._closing
            if kept:
                self._waiting.append(alert)
                self._changed.notify()
        if not kept:
            self._count("dropped", alert, reason="too many alerts wait, or the supervisor stops")

    def close(self, patience_s: float = CLOSE_S) -> None:
        """End the thread once what waits is sent, within `patience_s`; what is not sent after most of it is counted as failed."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        # Twice: what waits may still be sent before the token ends the pauses between attempts. A call under way is waited for no longer.
        self._thread.join(patience_s * 3 / 4)
        self._token.cancel(CancelledError("the supervisor stops"))
        self._thread.join(patience_s / 4)

    def _send_all(self) -> None:
        while True:
            with self._changed:
                # Until `put` or `close`, which notify.
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                alert = self._waiting.popleft()
            try:
                self._retrier.call(self._channel.send, alert)
                self._count("sent", alert)
            except ModynError as error:
                self._count("failed", alert, reason=error.message)
            except Exception as error:  # noqa: BLE001 - it would end the thread, and all alerts with it
                _LOG.exception("alert_crashed", channel=self._channel.name)
                self._count("failed", alert, reason=f"{type(error).__name__}: {error}")

    def _count(self, outcome: str, alert: Alert, **detail: Any) -> None:
        ALERTS.labels(self._channel.name, outcome).inc()
        log = _LOG.info if outcome == "sent" else _LOG.warning
        log(f"alert_{outcome}", channel=self._channel.name, run_id=alert.run_id, kind=alert.kind, **detail)
