"""The acceptance rule of Hugging Face transformers' assisted generation, by itself."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

import numpy as np

from conformance.contract import EngineCard
from conformance.errors import EngineLoadError
from conformance.law import Floats
from conformance.reference import Ints
from conformance.verifier.contract import PAD, VerifierCapabilities

HOMEPAGE = "https://github.com/huggingface/transformers"
RULE = "transformers.generation.utils"


class TransformersVerifier:
    """`_speculative_sampling`, which generation calls once for every block.

    It takes one block at a time, in float32 as generation hands it over, and draws from torch's
    global generator.

    Raises
    ------
    EngineLoadError
        If torch or transformers is missing, or this version keeps its rule elsewhere.
    """

    def __init__(self) -> None:
        try:
            self._torch: Any = importlib.import_module("torch")
            self._rule: Any = importlib.import_module(RULE)._speculative_sampling
        except (ImportError, AttributeError) as exc:
            raise EngineLoadError(
                f"transformers' acceptance rule cannot be reached: {exc}; "
                "pip install 'specdec-conformance[transformers]'"
            ) from exc
        self._torch.set_num_threads(1)
        self.card = EngineCard(
            name="transformers:verifier",
            version=metadata.version("transformers"),
            method="acceptance rule of assisted generation",
            homepage=HOMEPAGE,
        )
        self.capabilities = VerifierCapabilities(max_batch=1, one_hot=False, dtypes=("float32",))

    def verify(
        self, target_probs: Floats, draft_probs: Floats | None, draft_tokens: Ints, seed: int
    ) -> Ints:
        """Verify one block. [1, K + 1]"""
        torch, k = self._torch, draft_tokens.shape[1]
        torch.manual_seed(seed)
        # the rule takes logits; those of a law are its logarithms
        p, q = (torch.from_numpy(a).log() for a in (target_probs, draft_probs))
        with torch.inference_mode():
            tokens, _ = self._rule(torch.from_numpy(draft_tokens), q, k, p)
        out = np.full((1, k + 1), PAD, dtype=np.int64)
        out[0, : tokens.shape[1]] = tokens[0].numpy()
        return out


def verifier() -> TransformersVerifier:
    """The only one there is."""
    return TransformersVerifier()
