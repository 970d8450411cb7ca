"""Keys of an AWS profile, for obstore. obstore reads keys from the environment and from the machine's role, but not from profiles."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypedDict

from modyn.errors import ConfigError

_READ_AGAIN = timedelta(minutes=15)
"""Longest time for which obstore uses the same keys, because other programs may renew the keys in the files."""
_NO_KEYS = ("role_arn", "credential_process", "sso_session", "sso_start_url", "sso_account_id")
"""If a profile has one of these settings, its keys are not in the file."""
_FIRST = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
"""Environment variables with credentials. These variables take precedence over the default profile."""


class Credential(TypedDict):
    """Credentials in the form that obstore expects."""

    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """A profile. The keys of the profile are read again after at most 15 minutes, because other programs renew the keys."""

    name: str
    credentials_file: Path
    config_file: Path

    @staticmethod
    def selected(environment: Mapping[str, str]) -> AwsProfile:
        """Return the profile that `AWS_PROFILE` names, or else the default profile. The returned profile may not exist."""
        home = Path(environment.get("HOME", "/"))
        return AwsProfile(
            environment.get("AWS_PROFILE") or "default",
            Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials"),
            Path(environment.get("AWS_CONFIG_FILE") or home / ".aws" / "config"),
        )

    @staticmethod
    def of(environment: Mapping[str, str]) -> AwsProfile | None:
        """Return the profile with the keys of this process; None if the keys come from another source.

        Args: environment: variables of this process, by name.
        Raises: ConfigError: `AWS_PROFILE` names a profile that is missing or has no keys, such as a profile of a role or of SSO; or no variable
        names a profile or keys, and the default profile is a profile of a role or of SSO without keys.
        """
        if "AWS_ACCESS_KEY_ID" in environment:
            return None
        named, profile = environment.get("AWS_PROFILE"), AwsProfile.selected(environment)
        is_first = bool(named) or not any(name in environment for name in _FIRST)
        if not is_first:
            return None
        if profile._keys() is not None:
            return profile
        if named or any(name in profile._settings() for name in _NO_KEYS):
            raise ConfigError(
                f"the AWS profile '{profile.name}' has no aws_access_key_id and aws_secret_access_key in {profile.credentials_file} "
                f"or {profile.config_file}; profiles of roles and of SSO are not read: export their keys "
                "(`aws configure export-credentials --format env`)"
            )
        return None

    @property
    def region(self) -> str | None:
        """Return the region of the profile, which may have no keys. Raises: ConfigError: a file of profiles cannot be read."""
        return self._settings().get("region")

    def __call__(self) -> Credential:
        """Read the keys. obstore calls this method. Raises: ConfigError: the keys no longer exist."""
        if (keys := self._keys()) is None:
            raise ConfigError(f"the AWS profile '{self.name}' has no keys any more; put them back into {self.credentials_file}")
        return keys

    def _keys(self) -> Credential | None:
        settings = self._settings()
        key, secret = settings.get("aws_access_key_id"), settings.get("aws_secret_access_key")
        if not (key and secret):
            return None
        return Credential(
            access_key_id=key,
            secret_access_key=secret,
            token=settings.get("aws_session_token"),
            expires_at=datetime.now(UTC) + _READ_AGAIN,
        )

    def _settings(self) -> dict[str, str]:
        """Return the profile's settings from both files. The file of credentials takes precedence."""
        found: dict[str, str] = {}
        section = self.name if self.name == "default" else f"profile {self.name}"
        for path, name in (self.config_file, section), (self.credentials_file, self.name):
            parser = configparser.RawConfigParser()
            try:
                with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
                    parser.read_file(file)
            except (configparser.Error, UnicodeDecodeError) as error:
                # The error may show lines of the file, which contain secrets.
                raise ConfigError(f"{path} is not a file of AWS profiles: {type(error).__name__}; correct it") from None
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}; make it readable for storage") from error
            if parser.has_section(name):
                found |= dict(parser.items(name))
        return found
