"""specdec-conformance: statistical verification of speculative decoding.

The names an engine author needs are here; importing them loads no model library.
"""

from conformance._version import __version__
from conformance.contract import (
    Capabilities,
    Completion,
    Engine,
    EngineCard,
    ModelPair,
    Request,
)
from conformance.decoding import Decoding, Dialect
from conformance.errors import ConformanceError, NotSupportedError
from conformance.verdict import Verdict

__all__ = [
    "Capabilities",
    "Completion",
    "ConformanceError",
    "Decoding",
    "Dialect",
    "Engine",
    "EngineCard",
    "ModelPair",
    "NotSupportedError",
    "Request",
    "Verdict",
    "__version__",
]
