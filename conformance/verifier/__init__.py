"""The verifier tier: the acceptance rule alone, judged on laws that are written down.

A verifier is the function (target laws, draft laws, draft tokens, seed) -> tokens inside an engine.
It needs no model, answers hundreds of thousands of times a second, and its law is known exactly;
so much smaller departures are seen here than in a whole engine. What it cannot show is everything
around it: caches, logit processors, batching of requests.
"""

from __future__ import annotations

from conformance.verifier.contract import Verifier, VerifierCapabilities

__all__ = ["Verifier", "VerifierCapabilities"]
