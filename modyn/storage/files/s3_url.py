"""URLs of the form `s3://BUCKET/PREFIX?OPTION=VALUE`. They never hold credentials, because a URL is kept in the catalogue, published and
shown; credentials come from the environment, a profile or the machine's role.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

from modyn.errors import ConfigError
from modyn.registry import nearest

OPTIONS = ("anonymous", "endpoint_override", "region", "scheme")


@dataclass(frozen=True, slots=True)
class S3Url:
    """`folder` is bucket and prefix, without a slash at the end."""

    folder: str
    options: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(text: str) -> S3Url:
        """Parse a URL. Raises: ConfigError, without the text where it may hold a secret."""
        place, _, query = text.removeprefix("s3://").partition("?")
        if "@" in place.split("/")[0]:
            raise ConfigError(
                "a base_path s3://… must not hold credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment "
                "of storage, or use a profile or a role"
            )
        options = dict(parse_qsl(query, keep_blank_values=True))
        for name in options:
            if name not in OPTIONS:
                is_secret = any(word in name.lower() for word in ("key", "token", "secret", "password"))
                hint = "" if is_secret else nearest(name, list(OPTIONS))
                raise ConfigError(
                    f"base_path s3://{place}: there is no option '{name}'{hint or '.'} Allowed: {', '.join(OPTIONS)}."
                    + (" Credentials belong into the environment of storage." if is_secret else "")
                )
        if options.get("anonymous", "true") not in {"true", "false"}:
            raise ConfigError(f"base_path s3://{place}: anonymous is true or false, not '{options['anonymous']}'")
        if options.get("scheme", "https") not in {"http", "https"}:
            raise ConfigError(f"base_path s3://{place}: scheme is http or https, not '{options['scheme']}'")
        folder = unquote(place).strip("/")
        if not folder or posixpath.normpath(folder) != folder or folder.startswith("../"):
            raise ConfigError(f"base_path s3://{place} is not s3://BUCKET or s3://BUCKET/PREFIX")
        return S3Url(folder, tuple(sorted(options.items())))

    def __str__(self) -> str:
        """The normal form."""
        return f"s3://{quote(self.folder)}" + (f"?{urlencode(self.options)}" if self.options else "")

    def holds(self, other: S3Url) -> bool:
        """Whether `other` lies in this folder, on the same server."""
        return self.options == other.options and f"{other.folder}/".startswith(f"{self.folder}/")
