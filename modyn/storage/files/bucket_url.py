"""URLs of the form `s3://BUCKET/PREFIX?OPTION=VALUE`, or `gs://`, or `az://`. A URL never contains credentials, because storage stores the URL in the
catalogue, publishes it and shows it. Credentials come from the environment, a profile or the machine's role.
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
    """A parsed URL. kind: the scheme, s3, gs or az. folder: bucket and prefix, without a slash at the end."""

    kind: str
    folder: str
    options: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(text: str) -> BucketUrl:
        """Parse a URL. Raises: ConfigError; the message omits text that may contain a secret."""
        kind, _, rest = text.partition("://")
        place, _, query = rest.partition("?")
        # The part `USER:PASSWORD@HOST` would be stored and shown with the URL.
        if "@" in place.split("/")[0]:
            raise ConfigError(f"a base_path {kind}://… must not hold credentials; {_CREDENTIALS[kind]}")
        options, allowed = dict(parse_qsl(query, keep_blank_values=True)), OPTIONS[kind]
        for name in options:
            if name not in allowed:
                # A suggestion would show the name of the option, which may itself be a secret.
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
        # The options are sorted, so that two spellings of one URL are equal.
        return BucketUrl(kind, folder, tuple(sorted(options.items())))

    @staticmethod
    def of_root(root: str) -> BucketUrl:
        """Return the URL of a configured root, which is stored as a path with one slash instead of two. Raises: ConfigError."""
        kind, _, rest = root.partition(":/")
        return BucketUrl.parse(f"{kind}://{rest.lstrip('/')}")

    def __str__(self) -> str:
        """Return the normal form of the URL."""
        return f"{self.kind}://{quote(self.folder)}" + (f"?{urlencode(self.options)}" if self.options else "")

    @property
    def base(self) -> str:
        """Prefix of full paths of objects: the URL without options, unquoted."""
        return f"{self.kind}://{self.folder}"

    @property
    def bucket(self) -> str:
        """The name of the bucket, or of the container."""
        return self.folder.partition("/")[0]

    @property
    def prefix(self) -> str:
        """Prefix of the keys of all objects, without a slash at the end; empty: the whole bucket."""
        return self.folder.partition("/")[2]

    def holds(self, other: BucketUrl) -> bool:
        """Whether `other` is in this folder, on the same server."""
        same = (self.kind, self.options) == (other.kind, other.options)
        # Both folders are compared with a slash at the end, so that `data` does not contain `data2`.
        return same and f"{other.folder}/".startswith(f"{self.folder}/")


def is_file_name(name: str) -> bool:
    """Whether an object's name, including slashes, is a valid path of a file below a folder. Objects may have any name."""
    return all(part not in {"", ".", ".."} and "\0" not in part for part in name.split("/"))
