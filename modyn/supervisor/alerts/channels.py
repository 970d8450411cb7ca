"""Channels that send alerts to other systems: signed webhooks, e-mail, and the services of Apprise. Each channel has a thread and a bounded queue."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import logging
import re
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
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

from prometheus_client import Counter

from modyn.config.system_sections.alerts import AlertKind, AlertsConfig
from modyn.errors import CancelledError, ConfigError, ModynError, UnavailableError
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy

if TYPE_CHECKING:
    from apprise.plugins import NotifyBase

TIMEOUT_S = 10.0
"""Timeout of one response of a receiver, in seconds."""
QUEUED = 100
"""Largest number of alerts that wait at one channel; further alerts are dropped and counted."""
RETRIES = RetryPolicy(600.0, first_pause_s=1.0, longest_pause_s=60.0)
"""Retries of one alert. Later alerts of the channel wait for these retries; therefore the channel drops an alert after 10 minutes."""
CLOSE_S = 2.0
"""Seconds for sending the waiting alerts when the supervisor stops."""

ALERTS = Counter("modyn_supervisor_alerts", "Alerts by channel and outcome: sent, failed, dropped", ["channel", "outcome"])

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class Alert:
    """A report about a run."""

    id: str
    """Id of the alert, which stays the same when the alert is sent again."""
    kind: AlertKind
    run_id: str
    pipeline: str
    state: str
    """State of the run when the alert was made."""
    time: float
    """Time of the event, in seconds since 1970."""
    message: str

    @property
    def title(self) -> str:
        """Return one line with the run and the kind of report."""
        return f"[modyn] run {self.run_id}: {self.kind}"

    @property
    def text(self) -> str:
        """Return the facts of the run, an empty line, and the message."""
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.time))
        facts = {"run": self.run_id, "pipeline": self.pipeline, "state": self.state, "time": when}
        return "\n".join([*(f"{name}: {value}" for name, value in facts.items()), "", self.message])


class AlertChannel(Protocol):
    """Sends alerts to one other system."""

    @property
    def name(self) -> str:
        """Name of the channel in logs and metrics."""

    def send(self, alert: Alert) -> None:
        """Send an alert. Raises: UnavailableError: a later attempt may succeed. ModynError: the receiver refuses the alert permanently."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect. A redirected POST would become a GET, and the alert would go to an address that is not configured."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> None:
        """Return None, so that the redirect is not followed."""


class Webhook:
    """Sends an alert by POST as JSON, with the time and an HMAC-SHA256 over time and body. Every status 2xx means success."""

    name = "webhook"

    def __init__(self, url: str, secret: str) -> None:
        """Args: secret: key of the HMAC; the receiver must have the same key."""
        self._url = url
        self._secret = secret.encode()
        self._opener = urllib.request.build_opener(_NoRedirects)

    def send(self, alert: Alert) -> None:
        """Send an alert. Raises: see `AlertChannel.send`; messages do not show the URL, which may contain a secret."""
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
            if _is_transient(error.code):
                raise UnavailableError(text) from error
            raise ModynError(f"{text}; correct alerts.webhook_url or its receiver") from error
        except (http.client.InvalidURL, UnicodeError):  # The messages of these errors show parts of the URL.
            raise ModynError("no request can be sent to the address of the webhook; correct alerts.webhook_url") from None
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"the webhook cannot be reached: {error}") from error


def _is_transient(status: int) -> bool:
    return status >= 500 or status in (408, 425, 429)


def signature(secret: bytes, now: str, body: bytes) -> str:
    """Return the hexadecimal HMAC-SHA256 of the text of `X-Modyn-Time`, a dot and the body."""
    return hmac.new(secret, f"{now}.".encode() + body, hashlib.sha256).hexdigest()


class Mail:
    """Sends an e-mail for each alert. If encryption is configured, the channel sends no e-mail over an unencrypted connection."""

    name = "mail"

    def __init__(self, config: AlertsConfig) -> None:
        self._config = config

    def send(self, alert: Alert) -> None:
        """Send an alert. Raises: see `AlertChannel.send`."""
        try:
            # The connection is closed without QUIT, because after an error of QUIT, a retry would send the e-mail again.
            with closing(self._connect()) as server:
                refused = server.send_message(self._message(alert))
        except smtplib.SMTPResponseException as error:
            answer = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            text = f"the mail server {self._config.smtp_address} answered {error.smtp_code} {answer}"
            raise (UnavailableError(text) if error.smtp_code < 500 else ModynError(text)) from error
        except (smtplib.SMTPRecipientsRefused, smtplib.SMTPNotSupportedError) as error:
            codes = [code for code, _ in getattr(error, "recipients", {}).values()]
            if any(code < 500 for code in codes):  # A server that uses greylisting accepts the e-mail later.
                raise UnavailableError(f"the mail server {self._config.smtp_address} postpones the delivery: {error}") from error
            raise ModynError(
                f"the mail server {self._config.smtp_address} refuses: {error}; correct the section alerts"
            ) from error
        except OSError as error:  # This includes all other errors of smtplib, because SMTPException is an OSError.
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
        message["Subject"] = alert.title
        message["Message-ID"] = f"<{alert.id}@{sender.rpartition('@')[2]}>"
        message.set_content(alert.text)
        return message


class AppriseService:
    """Sends alerts to a service that Apprise supports, such as Slack, Microsoft Teams or PagerDuty.

    Apprise only returns whether an alert was sent. The warnings of Apprise name the HTTP status, which distinguishes a refusal from an outage.
    """

    _TYPES: Final[dict[AlertKind, str]] = {
        "failed": "failure",
        "stalled": "warning",
        "degraded": "warning",
        "finished": "success",
    }

    def __init__(self, service: NotifyBase) -> None:
        self._service = service
        self.name = str(service.service_name).lower()

    @classmethod
    def open(cls, url: str, setting: str) -> Self:
        """Return the service of an Apprise URL. Raises: ConfigError: the URL is invalid, or Apprise is not installed; the message does not show the
        URL.

        Args: setting: name of the option with the URL, for messages.
        """
        try:
            from apprise import Apprise, AppriseAsset, OverflowMode
        except ImportError:
            raise ConfigError(f"{setting}: needs Apprise; pip install 'modyn[alerts]' where the supervisor runs") from None
        # Apprise logs addresses, and no address may reach the supervisor's log.
        log = logging.getLogger("apprise")
        log.propagate = False
        # Warnings are enabled even if the supervisor has `log_level: error`, because `send` reads the HTTP status in a warning.
        log.setLevel(logging.WARNING)
        asset = AppriseAsset(app_id="modyn", async_mode=False, storage_mode="memory")
        service = Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
        if service is None:
            raise ConfigError(
                f"{setting}: Apprise knows no service with this address; https://appriseit.com/services/ shows how to write it"
            )
        service.socket_connect_timeout = service.socket_read_timeout = TIMEOUT_S
        service.overflow_mode = OverflowMode.TRUNCATE  # The text is cut, because a service may refuse a longer text.
        return cls(service)

    def send(self, alert: Alert) -> None:
        """Send an alert. Raises: see `AlertChannel.send`; messages do not show the address."""
        warnings, log = _Warnings(), logging.getLogger("apprise")
        # The log of Apprise is the only source of the HTTP status.
        log.addHandler(warnings)
        try:
            is_sent = self._service.notify(alert.text, alert.title, self._TYPES[alert.kind], body_format="text")
        finally:
            log.removeHandler(warnings)
        if is_sent:
            return
        if (status := warnings.status) is None:
            raise UnavailableError(f"{self.name} cannot be reached, or refuses the alert")
        text = f"{self.name} answered {status}"
        raise UnavailableError(text) if _is_transient(status) else ModynError(f"{text}; correct alerts.apprise_urls")


class _Warnings(logging.Handler):
    """Keeps the HTTP status from the warnings that Apprise logs in this thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.status: int | None = None
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Read the HTTP status from a log line of Apprise. If the service has answered, the line contains `error=STATUS`."""
        found = re.search(r"\berror=(\d{3})\b", record.getMessage())
        if record.thread == self._thread and found is not None:
            self.status = int(found[1])


def channels(config: AlertsConfig) -> list[AlertChannel]:
    """Return the configured channels. Raises: ConfigError: a secret or a package is missing, or an address is invalid."""
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
    found += [AppriseService.open(url, f"alerts.apprise_urls.{i}") for i, url in enumerate(config.apprise_urls)]
    return found


class AlertQueue:
    """Sends the alerts of one channel in order, and repeats alerts that fail temporarily. `put` never waits.

    Args: queued: largest number of waiting alerts; further alerts are dropped.
    """

    def __init__(self, channel: AlertChannel, retries: RetryPolicy = RETRIES, queued: int = QUEUED) -> None:
        self._channel = channel
        self._queued = queued
        self._token = CancellationToken()
        self._retrier = Retrier(
            retries, self._token, lambda reason: _LOG.warning("alert_waits", channel=channel.name, reason=reason)
        )
        # Guards the two fields below. Notified by `put` and `close`, which wake the thread.
        self._changed = threading.Condition()
        self._waiting: deque[Alert] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._send_all, name=f"alerts-{channel.name}", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Queue an alert. If the queue is full, drop the alert and count it."""
        with self._changed:
            # `put` never waits, because a slow channel must not delay the alerts of other channels.
            kept = len(self._waiting) < self._queued and not self._closing
            if kept:
                self._waiting.append(alert)
                self._changed.notify()
        if not kept:
            self._count("dropped", alert, reason="too many alerts wait, or the supervisor stops")

    def close(self, patience_s: float = CLOSE_S) -> None:
        """End the thread after the waiting alerts are sent. Args: patience_s: seconds to wait; after three quarters of this time, unsent alerts
        count as failed.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        # The cancelled token ends the pauses between attempts, so that the thread ends after its current call.
        self._thread.join(patience_s * 3 / 4)
        self._token.cancel(CancelledError("the supervisor stops"))
        self._thread.join(patience_s / 4)

    def _send_all(self) -> None:
        while True:
            with self._changed:
                # Woken by `put` and `close`.
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                alert = self._waiting.popleft()
            try:
                self._retrier.call(self._channel.send, alert)
                self._count("sent", alert)
            except ModynError as error:
                self._count("failed", alert, reason=error.message)
            except Exception as error:  # noqa: BLE001 - it would end the thread and all later alerts
                _LOG.exception("alert_crashed", channel=self._channel.name)
                self._count("failed", alert, reason=f"{type(error).__name__}: {error}")

    def _count(self, outcome: str, alert: Alert, **detail: Any) -> None:
        ALERTS.labels(self._channel.name, outcome).inc()
        log = _LOG.info if outcome == "sent" else _LOG.warning
        log(f"alert_{outcome}", channel=self._channel.name, run_id=alert.run_id, kind=alert.kind, **detail)
