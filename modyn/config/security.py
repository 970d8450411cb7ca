"""The section `security` of the system configuration: certificates and tokens."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator

from modyn.config.base import Section
from modyn.errors import ConfigError


class SecurityConfig(Section):
    """Access to the services. Beyond loopback, TLS and a token are required."""

    tls_cert: Path | None = Field(None, description="PEM file with the certificate that servers show")
    tls_key: Path | None = Field(None, description="PEM file with the private key of `tls_cert`")
    tls_ca: Path | None = Field(None, description="PEM file with the authority that clients trust; default: `tls_cert`")
    token: str | None = Field(None, description="secret that clients send with each call, at least 16 characters", repr=False)
    token_file: Path | None = Field(None, description="file that holds the token, in place of `token`")

    @field_validator("token")
    @classmethod
    def _long_enough(cls, value: str | None) -> str | None:
        # Not by `min_length`: its message would show the secret.
        if value is not None and len(value) < 16:
            raise ValueError("the token has fewer than 16 characters; choose a longer secret")
        return value

    @model_validator(mode="after")
    def _pairs(self) -> SecurityConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: set both or none")
        if self.token is not None and self.token_file is not None:
            raise ValueError("set token or token_file, not both")
        return self

    def secret(self) -> str | None:
        """Return the token, read anew from the file, or from the field; None: none is set.

        Raises: ConfigError: the file cannot be read or its token has fewer than 16 characters.
        """
        if self.token_file is None:
            return self.token
        try:
            text = self.token_file.read_text().strip()
        except OSError as error:
            raise ConfigError(f"security.token_file: cannot read {self.token_file}: {error.strerror}") from error
        if len(text) < 16:
            raise ConfigError(f"security.token_file: {self.token_file} holds fewer than 16 characters; put a longer secret there")
        return text
