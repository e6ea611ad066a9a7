"""Text from an engine, made fit for a terminal."""

from __future__ import annotations


def printable(text: str, longest: int = 2000) -> str:
    """The text without control characters (an escape sequence could rewrite the verdict above
    it), shortened if it is longer than anybody would read.
    """
    clean = "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return clean if len(clean) <= longest else clean[:longest] + " ..."
