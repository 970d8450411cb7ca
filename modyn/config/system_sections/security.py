"""Section `security` of the system configuration: certificates and tokens."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator

from modyn.config.base import Section
from modyn.errors import ConfigError


class SecurityConfig(Section):
    """Access to the services. Addresses other than loopback require TLS and a token."""

    tls_cert: Path | None = Field(
        None,
        description="PEM file with the certificate of servers, and of clients if servers require one. It is read again when it changes",
    )
    tls_key: Path | None = Field(None, description="PEM file with the private key of `tls_cert`")
    tls_ca: Path | None = Field(None, description="PEM file with the authority that clients trust; default: `tls_cert`")
    client_ca: Path | None = Field(
        None,
        description="PEM file with the authority of the certificates that clients must show; by default, clients need no certificate",
    )
    token: str | None = Field(None, description="secret that clients send with each call, at least 16 characters", repr=False)
    token_file: Path | None = Field(
        None,
        description="file with the token, instead of `token`. If it has several lines, the first token is sent and all are accepted. It is read "
        "again when it changes",
    )
    accepted_file: Path | None = Field(
        None,
        description="file with a line `ROLE SHA256` for each token that servers accept; roles are reader, worker, writer and admin. By default, "
        "`token` and the tokens derived from it are accepted",
    )

    @field_validator("token")
    @classmethod
    def _long_enough(cls, value: str | None) -> str | None:
        # `min_length` is not used, because its message would show the secret.
        if value is not None and len(value) < 16:
            raise ValueError("the token has fewer than 16 characters; choose a longer secret")
        return value

    @model_validator(mode="after")
    def _pairs(self) -> SecurityConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: set both or none")
        if self.client_ca is not None and self.tls_cert is None:
            raise ValueError("client_ca asks clients for certificates, which needs TLS: set tls_cert and tls_key as well")
        if self.token is not None and self.token_file is not None:
            raise ValueError("set token or token_file, not both")
        return self

    def secret(self) -> str | None:
        """Return the token to send, from `token_file` (which is read again) or from `token`; None: no token is set. Raises: see `secrets`."""
        return next(iter(self.secrets()), None)

    def secrets(self) -> list[str]:
        """Return the accepted tokens. The first token is the token to send. The other tokens are accepted while users introduce a new token.

        Raises: ConfigError: the file cannot be read or a token in it has fewer than 16 characters.
        """
        if self.token_file is None:
            return [] if self.token is None else [self.token]
        lines = _lines(self.token_file, "token_file")
        if not lines or min(map(len, lines)) < 16:
            raise ConfigError(f"security.token_file: {self.token_file} holds fewer than 16 characters; put a longer secret there")
        return lines

    def accepted_lines(self) -> list[str]:
        """Return the lines of `accepted_file`. Raises: ConfigError: the file cannot be read."""
        return [] if self.accepted_file is None else _lines(self.accepted_file, "accepted_file")


def _lines(path: Path, field: str) -> list[str]:
    """Return the non-empty lines of a file."""
    try:
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"security.{field}: cannot read {path}: {reason}") from error
