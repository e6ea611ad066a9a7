"""Named errors.

Everything a user can get wrong, and everything an engine can answer that is not an answer, has a
class of its own, so that the command line can print one sentence and tests can ask for that class.
"""

from __future__ import annotations


class ConformanceError(Exception):
    """Base class of every error this package raises on purpose.

    Attributes
    ----------
    detail : str
        What stood behind it where that is known: an engine's traceback or its last output.
    """

    detail: str = ""


class InvalidDecodingError(ConformanceError, ValueError):
    """A decoding configuration that means nothing (temperature < 0, top_p = 0, an unknown key)."""


class InvalidLogitsError(ConformanceError, ValueError):
    """Logits that define no law: NaN, +inf, nothing finite, or the wrong shape."""


class InvalidDistributionError(ConformanceError, ValueError):
    """Numbers that are not a probability distribution."""


class ProbeError(ConformanceError):
    """A probe that cannot be made, read, or that does not do what a probe must."""


class UnknownEngineError(ConformanceError, LookupError):
    """An engine name that resolves to nothing."""


class EngineLoadError(ConformanceError):
    """An engine that exists but cannot be constructed or loaded (a missing dependency, say)."""


class NotSupportedError(ConformanceError):
    """Raised by an engine to refuse a configuration out loud; never held against it."""


class EngineFailure(ConformanceError):
    """An engine that raised, died or hung while it was answering."""


class BadAnswerError(EngineFailure):
    """An engine that answered with something the contract does not allow."""


class EvidenceError(ConformanceError):
    """Evidence on disk that is missing, damaged or of another format."""


class PlanError(ConformanceError, ValueError):
    """A run that cannot be planned: no case, an impossible alpha, an unknown profile."""


class ReportError(ConformanceError):
    """A report that cannot be read or does not fit its schema."""


class SetupError(ConformanceError):
    """An engine's own environment that cannot be made."""


class ExpectationsError(ConformanceError, ValueError):
    """An expectations file that cannot be read, or an entry in it that says too little."""
