"""Checks of the first bytes of a text file: byte order mark, encoding and compression."""

from __future__ import annotations

from modyn.errors import DataError

HEAD_BYTES = 1 << 12
"""Number of bytes that are checked."""
UTF8_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, which does not belong to the text."""

_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_PACKED = {
    b"\x1f\x8b": ("gzip", ".gz"),
    b"BZh": ("bzip2", ".bz2"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"\xfd7zXZ\x00": ("xz", ""),
    b"PK\x03\x04": ("zip", ""),
}


def refuse_other_text(path: str, head: bytes) -> None:
    """Refuse a compressed file, and a text file in an encoding in which line breaks and separators are not single bytes. The error names encoding or
    compression.

    Args: path: path of the file, for the error. head: the first HEAD_BYTES of the file, or all of it.
    Raises: DataError.
    """
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            raise _encoded(path, encoding)
    for magic, (kind, ending) in _PACKED.items():
        if head.startswith(magic):
            how = f"rename it, so that its name ends in '{ending}', or unpack it" if ending else "unpack it"
            raise DataError(f"{path} is compressed with {kind}, and its name does not say so; {how}")
    # Text without a mark: an ASCII character has one NUL byte of two in UTF-16, and three NUL bytes of four in UTF-32. NULs at the end may be damage.
    text = head.strip(b"\0")
    if text.count(0) > len(text) * 3 // 5:
        raise _encoded(path, "UTF-32")
    if text.count(0) > len(text) // 4 and min(text[::2].count(0), text[1::2].count(0)) < len(text) // 16:
        raise _encoded(path, "UTF-16")


def _encoded(path: str, encoding: str) -> DataError:
    return DataError(
        f"{path} is encoded in {encoding}, in which no line break is one byte; convert it: `iconv -f {encoding} -t UTF-8`, or write it with "
        "encoding utf-8"
    )
