"""The decoding configuration and the dialect in which an engine applies it.

A `Decoding` says *what* was asked (temperature, top-k, top-p, min-p, or greedy). A `Dialect` says
how one engine understands the request where engines legitimately differ: the order of the warps,
whether the token that crosses ``top_p`` is kept, and what happens to ties at the top-k edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from conformance.errors import InvalidDecodingError

Warp = Literal["temperature", "top_k", "top_p", "min_p"]
WARPS: tuple[Warp, ...] = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class Decoding:
    """One decoding configuration.

    Parameters
    ----------
    greedy : bool
        Take the argmax of the logits; excludes every other field.
    temperature : float
        Divides the logits; > 0.
    top_k : int or None
        Keep the k largest logits; >= 1. A k above the vocabulary size keeps everything.
    top_p : float or None
        Keep the smallest set of most likely tokens whose mass reaches ``top_p``; in (0, 1].
    min_p : float or None
        Drop tokens whose probability is below ``min_p`` times the largest; in [0, 1].

    Raises
    ------
    InvalidDecodingError
        If a value is outside its range, or greedy is combined with another field.

    Examples
    --------
    >>> str(Decoding.parse("temperature=0.7,top_p=0.8"))
    'temperature=0.7,top_p=0.8'
    >>> str(Decoding(top_k=5))
    'temperature=1,top_k=5'
    >>> Decoding.parse("greedy").greedy
    True
    """

    greedy: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        filters = (self.top_k, self.top_p, self.min_p)
        if self.greedy and (self.temperature != 1.0 or any(f is not None for f in filters)):
            raise InvalidDecodingError(
                "greedy decoding takes the argmax and cannot be combined with temperature, top_k, "
                "top_p or min_p; ask for one or the other"
            )
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise InvalidDecodingError(
                f"temperature must be a finite number > 0, not {self.temperature!r}"
            )
        if self.temperature == 0:
            raise InvalidDecodingError("temperature = 0 is greedy decoding: write 'greedy'")
        if self.top_k is not None and (
            isinstance(self.top_k, bool) or self.top_k % 1 != 0 or self.top_k < 1
        ):
            raise InvalidDecodingError(
                f"top_k must be a whole number >= 1, not {self.top_k!r}; leave it out to keep all"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InvalidDecodingError(f"top_p must be in (0, 1], not {self.top_p!r}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise InvalidDecodingError(f"min_p must be in [0, 1], not {self.min_p!r}")

    @classmethod
    def parse(cls, text: str) -> Decoding:
        """Read ``greedy`` or ``key=value,...``, the form that `str` prints.

        Raises
        ------
        InvalidDecodingError
            If a key is unknown or given twice, or a value is not a number in its range.
        """
        words = [w.strip() for w in text.split(",") if w.strip()]
        if not words:
            raise InvalidDecodingError(
                "empty decoding; write 'greedy' or for example 'temperature=0.7,top_p=0.8'"
            )
        if words == ["greedy"]:
            return cls(greedy=True)
        values: dict[str, float | int] = {}
        for word in words:
            key, sep, raw = (part.strip() for part in word.partition("="))
            if not sep or key not in WARPS:
                raise InvalidDecodingError(
                    f"cannot read {word!r} in decoding {text!r}; known keys: {', '.join(WARPS)}, "
                    "each written key=value, or the single word 'greedy'"
                )
            if key in values:
                raise InvalidDecodingError(f"{key} is given twice in decoding {text!r}")
            try:
                values[key] = int(raw) if key == "top_k" else float(raw)
            except ValueError:
                kind = "a whole number" if key == "top_k" else "a number"
                raise InvalidDecodingError(f"{key} must be {kind}, not {raw!r}") from None
        return cls(**values)  # type: ignore[arg-type]  # keys and types were checked above

    def __str__(self) -> str:
        if self.greedy:
            return "greedy"
        parts = [f"temperature={_shortest(self.temperature)}"]
        parts += [
            f"{name}={_shortest(value)}"
            for name in ("top_k", "top_p", "min_p")
            if (value := getattr(self, name)) is not None
        ]
        return ",".join(parts)

    @property
    def truncates(self) -> bool:
        """Whether a filter can set a token's probability to zero."""
        return not self.greedy and any(f is not None for f in (self.top_k, self.top_p, self.min_p))


def _shortest(value: float) -> str:
    """The shortest text that reads back as the same number; whole numbers without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine applies a decoding where engines legitimately differ.

    Parameters
    ----------
    order : tuple of str
        The order in which the warps are applied.
    top_p_crossing : {'keep', 'drop'}
        Whether the token whose mass crosses ``top_p`` is kept. The most likely token always is.
    top_k_ties : {'keep', 'lowest-id'}
        Whether every logit equal to the k-th largest is kept, or exactly k tokens, ties going to
        the lower token id.

    Examples
    --------
    >>> Dialect(order=("top_k", "top_p", "min_p", "temperature")).order[-1]
    'temperature'
    """

    order: tuple[Warp, ...] = WARPS
    top_p_crossing: Literal["keep", "drop"] = "keep"
    top_k_ties: Literal["keep", "lowest-id"] = "keep"

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(WARPS):
            raise InvalidDecodingError(
                f"a dialect orders each of {', '.join(WARPS)} exactly once, not {self.order!r}"
            )
        if self.top_p_crossing not in ("keep", "drop"):
            raise InvalidDecodingError("top_p_crossing must be 'keep' or 'drop'")
        if self.top_k_ties not in ("keep", "lowest-id"):
            raise InvalidDecodingError("top_k_ties must be 'keep' or 'lowest-id'")


DEFAULT_DECODINGS: tuple[Decoding, ...] = (
    Decoding(greedy=True),
    Decoding(),
    Decoding(temperature=0.7, top_p=0.8),
    Decoding(top_k=8),
)


def parse_decodings(texts: Iterable[str]) -> tuple[Decoding, ...]:
    """Parse several decodings and drop repetitions, keeping the order."""
    return tuple(dict.fromkeys(Decoding.parse(t) for t in texts))
