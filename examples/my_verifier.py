"""A complete verifier in one file: the acceptance rule, one block at a time."""

import numpy as np

from conformance import EngineCard
from conformance.verifier import VerifierCapabilities


class MyVerifier:
    card = EngineCard(name="my-verifier", version="1.0")
    capabilities = VerifierCapabilities(max_batch=1, one_hot=False)

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        # [B, K + 1, V], [B, K, V] or None, [B, K] -> tokens [B, K + 1], padded with -1
        rng = np.random.default_rng(seed)
        p, q, x = target_probs[0], draft_probs[0], draft_tokens[0]
        n = 0
        while n < len(x) and rng.random() < p[n, x[n]] / q[n, x[n]]:
            n += 1
        law = p[n] if n == len(x) else np.maximum(p[n] - q[n], 0)
        out = np.full((1, len(x) + 1), -1)
        out[0, :n] = x[:n]
        out[0, n] = rng.choice(len(law), p=law / law.sum())
        return out
