"""URLs of the form `s3://BUCKET/PREFIX?OPTION=VALUE`, or `gs://`, or `az://`. They never hold credentials, because a URL is kept in the
catalogue, published and shown; credentials come from the environment, a profile or the machine's role.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

from modyn.errors import ConfigError
from modyn.registry import nearest

OPTIONS = {
    "s3": ("anonymous", "endpoint_override", "region", "scheme"),
    "gs": ("anonymous", "endpoint_override", "scheme"),
    "az": ("account", "anonymous", "endpoint_override", "scheme"),
}
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of storage, or use a profile or a role",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS in the environment of storage, or use the machine's service account",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY in the environment of storage, or use a managed identity",
}


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """`kind` is the scheme: s3, gs or az. `folder` is bucket and prefix, without a slash at the end."""

    kind: str
    folder: str
    options: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(text: str) -> BucketUrl:
        """Parse a URL. Raises: ConfigError, without the text where it may hold a secret."""
        kind, _, rest = text.partition("://")
        place, _, query = rest.partition("?")
        if "@" in place.split("/")[0]:
            raise ConfigError(f"a base_path {kind}://… must not hold credentials; {_CREDENTIALS[kind]}")
        options, allowed = dict(parse_qsl(query, keep_blank_values=True)), OPTIONS[kind]
        for name in options:
            if name not in allowed:
                is_secret = any(word in name.lower() for word in ("key", "token", "secret", "password", "sig"))
                hint = "" if is_secret else nearest(name, list(allowed))
                raise ConfigError(
                    f"base_path {kind}://{place}: there is no option '{name}'{hint or '.'} Allowed: {', '.join(allowed)}."
                    + (" Credentials belong into the environment of storage." if is_secret else "")
                )
        if options.get("anonymous", "true") not in {"true", "false"}:
            raise ConfigError(f"base_path {kind}://{place}: anonymous is true or false, not '{options['anonymous']}'")
        if options.get("scheme", "https") not in {"http", "https"}:
            raise ConfigError(f"base_path {kind}://{place}: scheme is http or https, not '{options['scheme']}'")
        folder = unquote(place).strip("/")
        if not folder or posixpath.normpath(folder) != folder or folder.startswith("../"):
            raise ConfigError(f"base_path {kind}://{place} is not {kind}://BUCKET or {kind}://BUCKET/PREFIX")
        return BucketUrl(kind, folder, tuple(sorted(options.items())))

    @staticmethod
    def of_root(root: str) -> BucketUrl:
        """The URL that a configured root means, which is kept as a path: that makes one slash of two. Raises: ConfigError."""
        kind, _, rest = root.partition(":/")
        return BucketUrl.parse(f"{kind}://{rest.lstrip('/')}")

    def __str__(self) -> str:
        """The normal form."""
        return f"{self.kind}://{quote(self.folder)}" + (f"?{urlencode(self.options)}" if self.options else "")

    @property
    def base(self) -> str:
        """What full paths of objects begin with: the URL without options, and not quoted."""
        return f"{self.kind}://{self.folder}"

    @property
    def bucket(self) -> str:
        """The name of the bucket, or of the container."""
        return self.folder.partition("/")[0]

    @property
    def prefix(self) -> str:
        """What the keys of all objects begin with, without a slash at the end; empty: all of the bucket."""
        return self.folder.partition("/")[2]

    def holds(self, other: BucketUrl) -> bool:
        """Whether `other` lies in this folder, on the same server."""
        same = (self.kind, self.options) == (other.kind, other.options)
        return same and f"{other.folder}/".startswith(f"{self.folder}/")


def is_file_name(name: str) -> bool:
    """Whether the name of an object, with the slashes in it, may be that of a file below a folder: keys may hold anything."""
    return all(part not in {"", ".", ".."} and "\0" not in part for part in name.split("/"))
