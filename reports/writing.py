"""Writing a file so that a reader sees the old one or the new one, and never half of either."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one visible step, with the same bytes on every platform."""
    # beside its destination, because a rename is only atomic within one file system; not with
    # tempfile, whose files nobody but their owner may read
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("x", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
