"""What the two processes say about a verifier: plain data, checked on both sides."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import asdict, fields
from typing import Any, get_args

import numpy as np

from conformance import introduction, wire
from conformance.contract import EngineCard
from conformance.errors import BadAnswerError, EngineLoadError
from conformance.reference import Ints
from conformance.verifier.contract import Dtype, VerifierCapabilities

Json = dict[str, Any]
LIMIT = 2**31 - 1
COUNTS = ("max_block", "max_vocab", "max_batch")


def describe(card: EngineCard, capabilities: VerifierCapabilities, injects: bool) -> Json:
    """Card and capabilities as plain data.

    Raises
    ------
    EngineLoadError
        If they are not of the contract's types.
    """
    if not isinstance(card, EngineCard) or not isinstance(capabilities, VerifierCapabilities):
        raise EngineLoadError(
            f"a verifier's card and capabilities are EngineCard and VerifierCapabilities, not "
            f"{type(card).__name__} and {type(capabilities).__name__}"
        )
    return {
        "protocol": wire.PROTOCOL,
        "card": asdict(card),
        "verifier": asdict(capabilities),
        "injects": bool(injects),
    }


def read_description(data: Json) -> tuple[EngineCard, VerifierCapabilities, bool]:
    """The inverse of `describe`, in the parent, which takes nothing from the worker on trust.

    Raises
    ------
    KeyError, TypeError, ValueError
        If it is not what `describe` makes of a card and capabilities of the declared types.
    """
    raw = dict(data["verifier"])
    raw["dtypes"] = tuple(raw["dtypes"])
    claims = VerifierCapabilities(**raw)
    for name in COUNTS:
        value = getattr(claims, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r:.100}")
    for field in fields(claims):
        if field.type == "bool" and type(getattr(claims, field.name)) is not bool:
            raise TypeError(f"{field.name} must be True or False")
    if not claims.dtypes or set(claims.dtypes) - set(get_args(Dtype)):
        raise ValueError(f"dtypes must be some of {get_args(Dtype)}, not {claims.dtypes!r:.100}")
    for name, value in data["card"].items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, not {value!r:.100}")
    card = {n: wire.plain_text(v, introduction.LONGEST_FIELD) for n, v in data["card"].items()}
    return EngineCard(**card), claims, data["injects"] is True


def plain_tokens(made: object, shape: tuple[int, int]) -> Ints:
    """A verifier's answer as int32, ids beyond it clipped to it: they are no less outside the
    vocabulary.

    Raises
    ------
    BadAnswerError
        If it is not an array of whole numbers of this shape.
    """
    try:
        array = np.asarray(made)
    except Exception as exc:  # a verifier's own type may raise anything here
        raise BadAnswerError(f"the answer is no array: {type(exc).__name__}: {exc}") from exc
    if array.shape != shape:
        raise BadAnswerError(f"the answer has shape {array.shape}, not {shape}")
    if array.dtype.kind not in "iu":
        some = array.astype(object).ravel()[:3].tolist()
        raise BadAnswerError(
            f"tokens must be whole numbers, not {array.dtype} (the first are {some!s:.100})"
        )
    return np.asarray(np.clip(array, -LIMIT, LIMIT), dtype=np.int64)


def read_tokens(answer: Json, rows: int, width: int) -> Ints:
    """Read a chunk's tokens in the parent. [rows, width]

    Raises
    ------
    BadAnswerError
        If it is not exactly that many numbers.
    """
    size = rows * width * 4
    try:
        packed = base64.b64decode(answer["tokens"], validate=True)
        # never more than was asked for, whatever the process sends
        data = zlib.decompressobj().decompress(packed, size + 1)
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as exc:
        raise BadAnswerError(f"the process answered something unreadable: {exc}") from exc
    if len(data) != size:
        raise BadAnswerError(f"the process answered {len(data)} bytes of tokens, not {size}")
    return np.frombuffer(data, dtype="<i4").astype(np.int64).reshape(rows, width)


def read_seconds(answer: Json) -> float:
    """Time inside the verifier; 0 where the process says something else."""
    seconds = answer.get("seconds")
    return float(seconds) if isinstance(seconds, float) and 0 <= seconds < 1e9 else 0.0
