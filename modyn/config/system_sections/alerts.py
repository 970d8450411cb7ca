"""Section `alerts` of the system configuration."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from modyn.config.base import Matching, Section

AlertKind = Literal["failed", "stalled", "finished", "degraded"]
ALERT_KINDS: tuple[AlertKind, ...] = ("failed", "stalled", "finished", "degraded")

_HostPort = Annotated[str, Matching(r"^[^\s/]+:\d{1,5}$", "write host:port, for example mail.example.org:587")]
_MailAddress = Annotated[str, Matching(r"^[^\s@<>]+@[^\s@<>]+$", "write name@host, without spaces")]

_WEB_ADDRESS = r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?([/?#][!-~]*)?"


class AlertsConfig(Section):
    """Alerts of runs by signed webhook (`webhook_url`), e-mail (`smtp_address`), or services such as Slack (`apprise_urls`); by default no alerts."""

    kinds: tuple[AlertKind, ...] = Field(ALERT_KINDS, description="kinds of alerts that are sent")
    stalled_after_s: float = Field(
        1800.0, gt=0, description="seconds without progress after which an executing run counts as stalled"
    )
    webhook_url: str | None = Field(None, description="address that gets each alert by POST, as JSON", repr=False)
    webhook_secret: str | None = Field(
        None,
        description="key of the signature of webhooks, at least 16 characters; set it in the supervisor's environment as "
        "`MODYN_ALERTS__WEBHOOK_SECRET`",
        repr=False,
    )
    apprise_urls: tuple[str, ...] = Field(
        (),
        description="addresses of services that get each alert, as [Apprise](https://appriseit.com/services/) writes them, for example "
        "`slack://…`; needs `pip install 'modyn[alerts]'`. They hold secrets: set them in the supervisor's environment, as a JSON list in "
        "`MODYN_ALERTS__APPRISE_URLS`",
        repr=False,
    )
    smtp_address: _HostPort | None = Field(None, description="mail server that gets each alert as an e-mail, as host:port")
    smtp_security: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="encryption of the connection to the mail server; `tls` encrypts it from its start"
    )
    smtp_user: str | None = Field(None, description="name at the mail server; none: no login")
    smtp_password: str | None = Field(
        None,
        description="password of `smtp_user`; set it in the supervisor's environment, as `MODYN_ALERTS__SMTP_PASSWORD`",
        repr=False,
    )
    mail_from: _MailAddress | None = Field(None, description="sender of the e-mails")
    mail_to: tuple[_MailAddress, ...] = Field((), description="receivers of the e-mails")

    @field_validator("webhook_url")
    @classmethod
    def _of_the_web(cls, value: str | None) -> str | None:
        # The value is never shown: addresses of webhooks often contain a secret.
        if value is not None and re.fullmatch(_WEB_ADDRESS, value) is None:
            raise ValueError(
                "write https://host/path or http://host:port/path, in ASCII, without spaces and without user and password"
            )
        return value

    @field_validator("apprise_urls", mode="before")
    @classmethod
    def _list_of_addresses(cls, value: Any) -> Any:
        # This validator runs before the types are checked, because pydantic's message would show the value.
        if not isinstance(value, list | tuple) or not all(isinstance(url, str) for url in value):
            raise ValueError("write a list of addresses, each as text")
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _long_enough(cls, value: str | None) -> str | None:
        # `min_length` is not used, because its message would show the secret.
        if value is not None and len(value) < 16:
            raise ValueError("the secret has fewer than 16 characters; choose a longer one")
        return value

    @model_validator(mode="after")
    def _complete(self) -> AlertsConfig:
        if self.smtp_address and not (self.mail_from and self.mail_to):
            raise ValueError("smtp_address needs mail_from and mail_to, the sender and the receivers of the e-mails")
        if self.smtp_user and self.smtp_security == "none":
            raise ValueError("smtp_user needs smtp_security starttls or tls: a password is not sent in the clear")
        return self
