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
from dataclasses import dataclass, replace

from conformance.dialect import FILTERS, LATER_FILTERS, WARPS, Dialect, Warp
from conformance.ends import check_strings
from conformance.errors import InvalidDecodingError
from conformance.grammar import LARGEST_ID
from conformance.grammar import check as check_grammar

__all__ = [
    "DEFAULT_DECODINGS", "FILTERS", "LATER_FILTERS", "PROCESSORS", "ROADS", "WARPS", "Decoding",
    "Dialect", "Warp", "parse_decodings",
]  # fmt: skip

# What changes the logits before they are warped, in this order, and what ends the output.
PROCESSORS = (
    "logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "banned", "allowed", "min_new_tokens", "stop", "grammar", "stop_strings",
)  # fmt: skip
# Ways to ask for the argmax, as interfaces have them; the decoding is the same.
ROADS = ("temperature-0", "temperature-unset", "top-k-1", "do-sample-false")
LARGEST_PENALTY = 100.0


@dataclass(frozen=True, slots=True)
class Decoding:
    """One decoding configuration.

    Parameters
    ----------
    greedy : bool
        Take the argmax of the logits; excludes temperature and every filter.
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
    road : str
        How greedy decoding is asked for, one of `ROADS`: a temperature of 0; nothing said of
        sampling at all, where an engine then takes the argmax; sampling at temperature 1 among
        the one likeliest token; a switch that turns sampling off. Empty for the engine's own way.
    typical_p : float or None
        Keep the smallest set of tokens whose mass reaches ``typical_p``, those first whose
        surprisal is nearest to the entropy (Meister et al. 2022); in (0, 1].
    epsilon_cutoff, eta_cutoff : float or None
        Drop tokens less likely than epsilon, or than the smaller of eta and sqrt(eta) exp(-entropy)
        (Hewitt et al. 2022), but never the likeliest; in (0, 1).
    grammar : str
        A regular language of token ids that outputs must begin a sentence of, as
        `conformance.grammar` reads it; a `stop` token may come where a sentence may end. Empty for
        none.
    logprobs : bool
        Whether the log-probability of every token is wanted as well. It changes no law.
    stop_strings : tuple of str
        Texts that end the output at the token that completes them, and which is its last: words of
        a probe, with a space between; see `conformance.ends`.

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
    road: str = ""
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    grammar: str = ""
    logprobs: bool = False
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.greedy and (self.temperature != 1.0 or self.filters):
            raise InvalidDecodingError(
                f"greedy decoding takes the argmax and cannot be combined with {', '.join(WARPS)}; "
                "ask for one or the other"
            )
        if self.road and not (self.greedy and self.road in ROADS):
            raise InvalidDecodingError(
                f"a road is a way to ask for greedy decoding, one of {', '.join(ROADS)}, not "
                f"{self.road!r:.60}{'' if self.greedy else ' of a sampled one'}"
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
        if self.typical_p is not None and not 0 < self.typical_p <= 1:
            raise InvalidDecodingError(f"typical_p must be in (0, 1], not {self.typical_p!r}")
        for name in ("epsilon_cutoff", "eta_cutoff"):
            cutoff = getattr(self, name)
            if cutoff is not None and not 0 < cutoff < 1:
                raise InvalidDecodingError(f"{name} must be in (0, 1), not {cutoff!r}")
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
        if wrong := check_strings(self.stop_strings):
            raise InvalidDecodingError(wrong)
        if self.grammar:
            if self.banned or self.allowed or self.min_new_tokens:
                raise InvalidDecodingError(
                    "banned, allowed and min_new_tokens are not combined with a grammar, which "
                    "says by itself what may come where"
                )
            check_grammar(self.grammar, self.stop)

    @classmethod
    def parse(cls, text: str) -> Decoding:
        """Read ``key=value,...``, the form that `str` prints; ``greedy`` and ``logprobs`` are words
        by themselves.

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
            if (word in WORDS) if not sep else (key in _READ):
                if key in values:
                    raise InvalidDecodingError(f"{key} is given twice in decoding {text!r}")
                values[key] = True if not sep else _read(key, raw)
                continue
            raise InvalidDecodingError(
                f"cannot read {word!r} in decoding {text!r}; known keys: {', '.join(_READ)}, "
                f"each written key=value, or the words {' and '.join(WORDS)} by themselves"
            )
        return cls(**values)  # type: ignore[arg-type]  # keys and types were checked above

    def __str__(self) -> str:
        parts = ["greedy" if self.greedy else f"temperature={_shortest(self.temperature)}"]
        parts += [f"road={self.road}"] if self.road else []
        for name in (*FILTERS, *PROCESSORS):
            value = getattr(self, name)
            # a penalty of 0 was asked for; no tokens, and no least number of them, were not
            if value not in (None, (), "") and (name, value) != ("min_new_tokens", 0):
                parts.append(f"{name}={_written(value)}")
        parts += ["logprobs"] if self.logprobs else []
        return ",".join(parts)

    @property
    def processors(self) -> tuple[str, ...]:
        """What it does to the logits before they are warped, and what ends the output, by name."""
        return tuple(name for name in PROCESSORS if getattr(self, name) not in (None, (), 0, ""))

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters it asks for, by name."""
        return tuple(name for name in FILTERS if getattr(self, name) is not None)

    @property
    def taken(self) -> Decoding:
        """What an engine is asked by this road: sampling, where that is the road's way."""
        if self.road == "top-k-1":
            return replace(self, greedy=False, road="", top_k=1)
        return replace(self, road="") if self.road else self

    @property
    def unfiltered(self) -> Decoding:
        """The same without its filters."""
        return self.without(FILTERS)

    def without(self, filters: Iterable[str]) -> Decoding:
        """The same without some filters."""
        return replace(self, **dict.fromkeys(filters))  # type: ignore[arg-type]  # None, each

    @property
    def truncates(self) -> bool:
        """Whether a filter can set a token's probability to zero."""
        return not self.greedy and bool(self.filters)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_ID


def _text(raw: str) -> str:
    if not raw:
        raise ValueError("nothing")
    return raw


def _ids(raw: str) -> tuple[int, ...]:
    return tuple(int(part) for part in raw.split(";"))


def _biases(raw: str) -> tuple[tuple[int, float], ...]:
    pairs = [part.partition(":") for part in raw.split(";")]
    return tuple((int(token), float(bias)) for token, _, bias in pairs)


WORDS = ("greedy", "logprobs")
# How each key is read, and what to call what it takes.
_READ: dict[str, tuple[Callable[[str], object], str]] = {
    "temperature": (float, "a number"),
    "top_k": (int, "a whole number"),
    "top_p": (float, "a number"),
    "min_p": (float, "a number"),
    "typical_p": (float, "a number"),
    "epsilon_cutoff": (float, "a number"),
    "eta_cutoff": (float, "a number"),
    "logit_bias": (_biases, "token ids with biases, as in 3:2.5;7:-1"),
    "repetition_penalty": (float, "a number"),
    "presence_penalty": (float, "a number"),
    "frequency_penalty": (float, "a number"),
    "banned": (_ids, "token ids, as in 3;7"),
    "allowed": (_ids, "token ids, as in 3;7"),
    "min_new_tokens": (int, "a whole number"),
    "stop": (_ids, "token ids, as in 3;7"),
    "road": (str, "a way to ask for greedy decoding"),
    "stop_strings": (lambda raw: tuple(raw.split(";")), "words, as in w7;w23 w5"),
    "grammar": (_text, "a grammar over token ids, as in (1|2)(3 4)*"),
}


def _read(key: str, raw: str) -> object:
    read, what = _READ[key]
    try:
        return read(raw)
    except ValueError:
        raise InvalidDecodingError(f"{key} must be {what}, not {raw!r}") from None


def _written(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return ";".join(
            f"{v[0]}:{_shortest(v[1])}" if isinstance(v, tuple) else str(v) for v in value
        )
    assert isinstance(value, int | float)
    return _shortest(value)


def _shortest(value: float) -> str:
    """The shortest text that reads back as the same number; whole numbers without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


DEFAULT_DECODINGS: tuple[Decoding, ...] = (
    Decoding(greedy=True),
    Decoding(),
    Decoding(temperature=0.7, top_p=0.8),
    Decoding(top_k=8),
)


def parse_decodings(texts: Iterable[str]) -> tuple[Decoding, ...]:
    """Parse several decodings and drop repetitions, keeping the order."""
    return tuple(dict.fromkeys(Decoding.parse(t) for t in texts))
