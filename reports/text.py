"""Numbers as people read them, and untrusted addresses and commands made fit to show."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from datetime import datetime
from urllib.parse import urlsplit

from conformance.reports.model import IntervalModel
from conformance.text import clean, one_line

_EFFECT_NAMES = {
    "kl_nats_per_token": "KL, nats per token",
    "tv": "TV",
    "leak": "draft leak",
    "surprisal_nats_per_token": "surprisal beyond the law's, nats per token",
    "repeated": "share of requests repeated beyond chance",
    "correlation": "correlation",
    "excess": "equal tokens beyond chance, share of pairs",
    "diverged": "share of tokens that are not the argmax",
}
_MINUTE = 60.0


def count(value: int) -> str:
    """Write a count with thousands separators.

    Examples
    --------
    >>> count(36864)
    '36,864'
    """
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """Write a count and its noun in the right number.

    Examples
    --------
    >>> counted(1, "answer"), counted(2304, "answer")
    ('1 answer', '2,304 answers')
    """
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def number(value: float | None) -> str:
    """Write a measured number with three significant digits; a dash where there is none.

    Examples
    --------
    >>> number(0.123456), number(12345.6), number(None)
    ('0.123', '12,346', '–')
    """
    if value is None:
        return "–"
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def p_text(value: float | None) -> str:
    """Write a probability as people quote it: ``3e-12``, ``0.41``.

    Examples
    --------
    >>> p_text(3.21e-12), p_text(0.4123), p_text(0.0), p_text(None)
    ('3.2e-12', '0.41', '< 1e-300', '–')
    """
    if value is None:
        return "–"
    # a p-value is never zero; one that is has left the range of float64
    return f"{value:.2g}" if value >= 1e-300 else "< 1e-300"


def odds(alpha: float) -> str:
    """Write a small probability as odds.

    Examples
    --------
    >>> odds(1e-6)
    '1 in 1,000,000'
    """
    return f"1 in {1 / alpha:,.0f}" if 1e-15 <= alpha <= 0.5 else f"{alpha:.2g}"


def percent(value: float) -> str:
    """Write a proportion as a percentage.

    Examples
    --------
    >>> percent(0.95), percent(0.999)
    ('95%', '99.9%')
    """
    return f"{100 * value:.4g}%"


def rate(part: int, whole: int) -> str:
    """Write ``part / whole`` as a percentage, or a dash where there is no whole."""
    return percent(round(part / whole, 3)) if whole > 0 else "–"


def duration(seconds: float) -> str:
    """Write a duration.

    Examples
    --------
    >>> duration(3.21), duration(75), duration(7260)
    ('3.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def moment(created: datetime) -> str:
    """Write a point in time to the minute, with its offset."""
    return created.isoformat(sep=" ", timespec="minutes").replace("+00:00", " UTC")


def effect_name(key: str) -> str:
    """Name an effect size for a reader."""
    return _EFFECT_NAMES.get(key, one_line(key, 60))


def interval(value: IntervalModel) -> str:
    """Write an estimate with its interval.

    Examples
    --------
    >>> interval(IntervalModel(estimate=0.12, low=0.1, high=0.14, confidence=0.95))
    '0.12 (95%: 0.1 to 0.14)'
    """
    return (
        f"{number(value.estimate)} ({percent(value.confidence)}: "
        f"{number(value.low)} to {number(value.high)})"
    )


def command_line(words: Iterable[str]) -> str:
    """Write a command so that a shell reads it back."""
    return one_line(shlex.join(words), 2000)


def web_address(url: str) -> str | None:
    """Return the address if it is plain http or https, else None: it may become a link.

    Examples
    --------
    >>> web_address("https://example.org/engine")
    'https://example.org/engine'
    >>> web_address("javascript:alert(1)") is None
    True
    """
    if len(url) > 500 or url != clean(url) or any(c.isspace() for c in url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return url if parts.scheme in ("http", "https") and parts.netloc else None


def at_least(rate: float) -> str:
    """Write the lower bound of a rate: rounded down, and never as 1, which no sample can show.

    Examples
    --------
    >>> at_least(0.99996), at_least(0.82549)
    ('0.9999', '0.8254')
    """
    return f"{min(math.floor(rate * 1e4) / 1e4, 0.9999):.4f}"
