"""Untrusted text made harmless to look at: in a terminal, a report, or a message.

Escaping for a format (HTML, Markdown, XML) is each renderer's own; what is done here comes before
it and is the same for all: terminal escapes go, characters that cannot be seen or that reorder
what is seen become visible, and nothing is longer than a reader would want.
"""

from __future__ import annotations

import re

# CSI sequences (colours, cursor moves), OSC sequences (titles, links) and two-character escapes
_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|\x1b[ -/]*[0-Z\\^-~]"
)
# Controls other than tab and newline, bidirectional overrides, zero-width characters, surrogates
# and the two code points XML forbids
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069"
    "\ud800-\udfff\ufeff\ufffe\uffff]"
)


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def clean(text: str) -> str:
    r"""Drop terminal escapes and make unseen characters visible; keep tabs and newlines.

    Examples
    --------
    >>> clean("\x1b[31mred\x1b[0m and \x07")
    'red and \\x07'
    """
    return _UNSEEN.sub(_visible, _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str, limit: int = 600) -> str:
    r"""Clean, join lines with spaces, and cut what is too long.

    Examples
    --------
    >>> one_line("two\nlines", 6)
    'two l…'
    """
    # the first cut bounds the work; cleaning can only lengthen what it keeps
    joined = " ".join(clean(text[: 4 * limit]).split())
    if len(joined) <= limit and len(text) <= 4 * limit:
        return joined
    return joined[: limit - 1] + "…"


def excerpt(text: str, limit: int) -> str:
    """Clean a long output and keep its two ends, where the cause usually is.

    Examples
    --------
    >>> excerpt("a" * 50 + "b" * 50, 20).splitlines()
    ['aaaaaaaaaa', '… 80 characters left out …', 'bbbbbbbbbb']
    """
    if len(text) <= limit:
        return clean(text)
    half = limit // 2
    left_out = f"\n… {len(text) - 2 * half:,} characters left out …\n"
    return clean(text[:half]) + left_out + clean(text[-half:])
