"""Certificates of services, as files."""

from __future__ import annotations

from pathlib import Path

import trustme

from modyn.config.system_sections.security import SecurityConfig


def issue(folder: Path, authority: trustme.CA | None = None, **fields: object) -> SecurityConfig:
    """Write `key`, `cert` and `ca` of one service, with a certificate of its own, each renamed into its place.

    Args: authority: None: one that issues nothing else. fields: further ones of the section.
    """
    folder.mkdir(exist_ok=True)
    authority = authority or trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = {"key": issued.private_key_pem, "cert": issued.cert_chain_pems[0], "ca": authority.cert_pem}
    for name, content in files.items():
        content.write_to_path(str(folder / f"{name}.new"))
        (folder / f"{name}.new").rename(folder / name)
    known = {"tls_cert": folder / "cert", "tls_key": folder / "key", "tls_ca": folder / "ca"}
    return SecurityConfig.model_validate({**known, **fields})
