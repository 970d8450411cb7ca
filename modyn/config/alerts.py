"""The section `alerts` of the system configuration: what is reported of runs, and where to."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from modyn.config.base import Matching, Section

AlertKind = Literal["failed", "stalled", "finished", "degraded"]
ALERT_KINDS: tuple[AlertKind, ...] = ("failed", "stalled", "finished", "degraded")

_HostPort = Annotated[str, Matching(r"^[^\s/]+:\d{1,5}$", "write host:port, for example mail.example.org:587")]
_MailAddress = Annotated[str, Matching(r"^[^\s@<>]+@[^\s@<>]+$", "write name@host, without spaces")]

_WEB_ADDRESS = r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?([/?#][!-~]*)?"


class AlertsConfig(Section):
    """Alerts of runs, as webhooks and e-mail. Without `webhook_url` and `smtp_address` none are sent."""

    kinds: tuple[AlertKind, ...] = Field(ALERT_KINDS, description="which alerts are sent")
    stalled_after_s: float = Field(
        1800.0, gt=0, description="a run that works, and makes no progress for so many seconds, has stalled"
    )
    webhook_url: str | None = Field(None, description="address that gets each alert by POST, as JSON", repr=False)
    webhook_secret: str | None = Field(
        None,
        description="key of the signature of webhooks, at least 16 characters; set it in the supervisor's environment, as "
        "`MODYN_ALERTS__WEBHOOK_SECRET`",
        repr=False,
    )
    smtp_address: _HostPort | None = Field(None, description="mail server that gets each alert as an e-mail, as host:port")
    smtp_security: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="encryption of the connection to the mail server: `tls` from its start on"
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
        # The value is not shown, here and where it is used: addresses of webhooks often hold a secret.
        if value is not None and re.fullmatch(_WEB_ADDRESS, value) is None:
            raise ValueError(
                "write https://host/path or http://host:port/path, in ASCII, without spaces and without user and password"
            )
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _long_enough(cls, value: str | None) -> str | None:
        # Not by `min_length`: its message would show the secret.
        if value is not None and len(value) < 16:
            raise ValueError("the secret has fewer than 16 characters; choose a longer one")
        return value

    @model_validator(mode="after")
    def _complete(self) -> AlertsConfig:
        if self.smtp_address and not (self.mail_from and self.mail_to):
            raise ValueError("smtp_address needs mail_from and mail_to: who sends the e-mails, and who gets them")
        if self.smtp_user and self.smtp_security == "none":
            raise ValueError("smtp_user needs smtp_security starttls or tls: a password is not sent in the clear")
        return self
