"""The decoding configuration and the dialect in which an engine applies it.

A `Decoding` says *what* was asked: temperature, top-k, top-p, min-p, or greedy; what is done to the
logits before that (penalties, biases, masks); and what ends the output. A `Dialect` says how one
engine understands the request where engines legitimately differ: the order of the warps, whether
the token that crosses ``top_p`` is kept, what happens to ties at the top-k edge, and which tokens a
penalty counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from conformance.errors import InvalidDecodingError

Warp = Literal["temperature", "top_k", "top_p", "min_p"]
WARPS: tuple[Warp, ...] = ("temperature", "top_k", "top_p", "min_p")
# What changes the logits before they are warped, in this order, and what ends the output.
PROCESSORS = (
    "logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "banned", "allowed", "min_new_tokens", "stop",
)  # fmt: skip
LARGEST_ID = 2**31
LARGEST_PENALTY = 100.0


@dataclass(frozen=True, slots=True)
class Decoding:
    """One decoding configuration.

    Parameters
    ----------
    greedy : bool
        Take the argmax of the logits; excludes temperature, top_k, top_p and min_p.
    temperature : float
        Divides the logits; > 0.
    top_k : int or None
        Keep the k largest logits; >= 1. A k above the vocabulary size keeps everything.
    top_p : float or None
        Keep the smallest set of most likely tokens whose mass reaches ``top_p``; in (0, 1].
    min_p : float or None
        Drop tokens whose probability is below ``min_p`` times the largest; in [0, 1].
    logit_bias : tuple of (int, float)
        Added to the logits of these tokens.
    repetition_penalty : float or None
        Divides the logit of a token that has occurred if it is positive, else multiplies it
        (Keskar et al. 2019, CTRL); > 0, and 1 changes nothing.
    presence_penalty, frequency_penalty : float or None
        Taken from the logit of a token that has occurred; the second once for each occurrence.
    banned : tuple of int
        Tokens that must not occur.
    allowed : tuple of int
        The only tokens that may occur; empty for all.
    stop : tuple of int
        Tokens that end the output, and are its last: end-of-sequence and stop token ids.
    min_new_tokens : int
        No `stop` token among so many first tokens.

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
    >>> str(Decoding.parse("greedy,stop=3;7,repetition_penalty=1.5"))
    'greedy,repetition_penalty=1.5,stop=3;7'
    """

    greedy: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    banned: tuple[int, ...] = ()
    allowed: tuple[int, ...] = ()
    min_new_tokens: int = 0
    stop: tuple[int, ...] = ()

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
        self._check_processors()

    def _check_processors(self) -> None:
        repetition = self.repetition_penalty
        if repetition is not None and not 0 < repetition <= LARGEST_PENALTY:
            raise InvalidDecodingError(
                f"repetition_penalty must be in (0, {LARGEST_PENALTY:g}], not {repetition!r}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if value is not None and not abs(value) <= LARGEST_PENALTY:
                raise InvalidDecodingError(
                    f"{name} must be within +-{LARGEST_PENALTY:g}, not {value!r}"
                )
        biased = tuple(token for token, _ in self.logit_bias)
        for name, ids in (
            ("logit_bias", biased),
            ("banned", self.banned),
            ("allowed", self.allowed),
            ("stop", self.stop),
        ):
            if len(set(ids)) < len(ids) or any(not _is_id(i) for i in ids):
                told = f"{name} needs distinct token ids >= 0, not {ids!r:.200}"
                raise InvalidDecodingError(told)
        if any(not abs(bias) <= LARGEST_PENALTY for _, bias in self.logit_bias):
            raise InvalidDecodingError(f"a logit_bias must be within +-{LARGEST_PENALTY:g}")
        if self.allowed and not set(self.allowed) - set(self.banned):
            raise InvalidDecodingError("every token that is allowed is banned as well")
        if isinstance(self.min_new_tokens, bool) or self.min_new_tokens < 0:
            raise InvalidDecodingError(f"min_new_tokens must be >= 0, not {self.min_new_tokens!r}")
        if self.min_new_tokens and not self.stop:
            raise InvalidDecodingError("min_new_tokens needs stop tokens to hold back")

    @classmethod
    def parse(cls, text: str) -> Decoding:
        """Read ``key=value,...``, the form that `str` prints; ``greedy`` is a word by itself.

        Token ids are separated by semicolons, ``stop=3;7``; a bias follows its id and a colon,
        ``logit_bias=3:2.5;7:-1``.

        Raises
        ------
        InvalidDecodingError
            If a key is unknown or given twice, or a value is not what its key takes.
        """
        words = [w.strip() for w in text.split(",") if w.strip()]
        if not words:
            raise InvalidDecodingError(
                "empty decoding; write 'greedy' or for example 'temperature=0.7,top_p=0.8'"
            )
        values: dict[str, object] = {}
        for word in words:
            key, sep, raw = (part.strip() for part in word.partition("="))
            if (word == "greedy") if not sep else (key in _READ):
                if key in values:
                    raise InvalidDecodingError(f"{key} is given twice in decoding {text!r}")
                values[key] = True if not sep else _read(key, raw)
                continue
            raise InvalidDecodingError(
                f"cannot read {word!r} in decoding {text!r}; known keys: {', '.join(_READ)}, "
                "each written key=value, or the single word 'greedy'"
            )
        return cls(**values)  # type: ignore[arg-type]  # keys and types were checked above

    def __str__(self) -> str:
        parts = ["greedy" if self.greedy else f"temperature={_shortest(self.temperature)}"]
        for name in ("top_k", "top_p", "min_p", *PROCESSORS):
            value = getattr(self, name)
            # a penalty of 0 was asked for; no tokens, and no least number of them, were not
            if value is not None and value != () and (name, value) != ("min_new_tokens", 0):
                parts.append(f"{name}={_written(value)}")
        return ",".join(parts)

    @property
    def processors(self) -> tuple[str, ...]:
        """What it does to the logits before they are warped, and what ends the output, by name."""
        return tuple(name for name in PROCESSORS if getattr(self, name) not in (None, (), 0))

    @property
    def truncates(self) -> bool:
        """Whether a filter can set a token's probability to zero."""
        return not self.greedy and any(f is not None for f in (self.top_k, self.top_p, self.min_p))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_ID


def _ids(raw: str) -> tuple[int, ...]:
    return tuple(int(part) for part in raw.split(";"))


def _biases(raw: str) -> tuple[tuple[int, float], ...]:
    pairs = [part.partition(":") for part in raw.split(";")]
    return tuple((int(token), float(bias)) for token, _, bias in pairs)


# How each key is read, and what to call what it takes.
_READ: dict[str, tuple[Callable[[str], object], str]] = {
    "temperature": (float, "a number"),
    "top_k": (int, "a whole number"),
    "top_p": (float, "a number"),
    "min_p": (float, "a number"),
    "logit_bias": (_biases, "token ids with biases, as in 3:2.5;7:-1"),
    "repetition_penalty": (float, "a number"),
    "presence_penalty": (float, "a number"),
    "frequency_penalty": (float, "a number"),
    "banned": (_ids, "token ids, as in 3;7"),
    "allowed": (_ids, "token ids, as in 3;7"),
    "min_new_tokens": (int, "a whole number"),
    "stop": (_ids, "token ids, as in 3;7"),
}


def _read(key: str, raw: str) -> object:
    read, what = _READ[key]
    try:
        return read(raw)
    except ValueError:
        raise InvalidDecodingError(f"{key} must be {what}, not {raw!r}") from None


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return ";".join(
            f"{v[0]}:{_shortest(v[1])}" if isinstance(v, tuple) else str(v) for v in value
        )
    assert isinstance(value, int | float)
    return _shortest(value)


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
    repetition_over, presence_over : {'all', 'output'}
        Whether the repetition penalty, and the presence and frequency penalties, count the tokens
        of the prompt too.
    penalty_window : int or None
        How many of the last of those tokens are counted; None for all.

    Examples
    --------
    >>> Dialect(order=("top_k", "top_p", "min_p", "temperature")).order[-1]
    'temperature'
    """

    order: tuple[Warp, ...] = WARPS
    top_p_crossing: Literal["keep", "drop"] = "keep"
    top_k_ties: Literal["keep", "lowest-id"] = "keep"
    repetition_over: Literal["all", "output"] = "all"
    presence_over: Literal["all", "output"] = "output"
    penalty_window: int | None = None

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(WARPS):
            raise InvalidDecodingError(
                f"a dialect orders each of {', '.join(WARPS)} exactly once, not {self.order!r}"
            )
        if self.top_p_crossing not in ("keep", "drop"):
            raise InvalidDecodingError("top_p_crossing must be 'keep' or 'drop'")
        if self.top_k_ties not in ("keep", "lowest-id"):
            raise InvalidDecodingError("top_k_ties must be 'keep' or 'lowest-id'")
        if not {self.repetition_over, self.presence_over} <= {"all", "output"}:
            raise InvalidDecodingError(
                "repetition_over and presence_over must be 'all' or 'output'"
            )
        window = self.penalty_window
        if window is not None and (type(window) is not int or window < 1):
            raise InvalidDecodingError(f"penalty_window must be >= 1 or None, not {window!r}")


DEFAULT_DECODINGS: tuple[Decoding, ...] = (
    Decoding(greedy=True),
    Decoding(),
    Decoding(temperature=0.7, top_p=0.8),
    Decoding(top_k=8),
)


def parse_decodings(texts: Iterable[str]) -> tuple[Decoding, ...]:
    """Parse several decodings and drop repetitions, keeping the order."""
    return tuple(dict.fromkeys(Decoding.parse(t) for t in texts))
