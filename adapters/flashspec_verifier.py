"""flashspec's acceptance rules: the fused step, the paper's sampler, and one-hot drafts."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

import numpy as np

from conformance.contract import EngineCard
from conformance.errors import EngineLoadError, UnknownEngineError
from conformance.law import Floats
from conformance.reference import Ints
from conformance.verifier.contract import PAD, VerifierCapabilities

HOMEPAGE = "https://github.com/Mattral/FlashSpec"
MODULE = "flashspec.sampling.rejection"
FUNCTIONS = ("rejection_step", "rejection_sample", "rejection_step_onehot")


class FlashspecVerifier:
    """One of flashspec's functions, on the CPU.

    Parameters
    ----------
    function : str
        One of `FUNCTIONS`.

    Raises
    ------
    UnknownEngineError
        If there is no such function.
    EngineLoadError
        If torch or flashspec is missing.
    """

    def __init__(self, function: str) -> None:
        if function not in FUNCTIONS:
            raise UnknownEngineError(
                f"flashspec has no {function!r}; there are {', '.join(FUNCTIONS)}"
            )
        try:
            self._torch: Any = importlib.import_module("torch")
            self._rule: Any = getattr(importlib.import_module(MODULE), function)
        except (ImportError, AttributeError) as exc:
            raise EngineLoadError(
                f"flashspec cannot be loaded: {exc}; pip install 'specdec-conformance[flashspec]'"
            ) from exc
        self._torch.set_num_threads(1)
        self._function = function
        self.card = EngineCard(
            name=f"flashspec:{function}",
            version=metadata.version("flashspec"),
            method="acceptance rule alone",
            homepage=HOMEPAGE,
        )
        onehot = function == "rejection_step_onehot"
        self.capabilities = VerifierCapabilities(
            max_batch=4096,
            draft_probs=not onehot,
            one_hot=onehot,
            # it takes bfloat16 too, but as log-probabilities, whose rounding is another law
            dtypes=("float32",),
            bonus=function != "rejection_sample",
        )

    def verify(
        self, target_probs: Floats, draft_probs: Floats | None, draft_tokens: Ints, seed: int
    ) -> Ints:
        """Verify blocks. [B, K + 1]"""
        generator = self._torch.Generator().manual_seed(seed)
        p = self._log(target_probs)
        x = self._torch.from_numpy(draft_tokens)
        with self._torch.inference_mode():
            if draft_probs is None:
                return self._block(x, self._rule(x, p, generator=generator))
            q = self._log(draft_probs)
            if self._function == "rejection_step":
                return self._block(x, self._rule(x, q, p, generator=generator))
            k = draft_tokens.shape[1]
            tokens, _, _ = self._rule(x, q, p[:, :k], x, k, generator=generator)
        out = np.full((len(draft_tokens), k + 1), PAD, dtype=np.int64)
        out[:, :k] = tokens.numpy()
        return out

    def _log(self, probs: Floats) -> Any:
        return self._torch.from_numpy(probs).log()

    @staticmethod
    def _block(x: Any, step: Any) -> Ints:
        """(accepted, next token) as a block of tokens."""
        accepted, following = step.numpy().T
        proposed = x.numpy()
        k = proposed.shape[1]
        out = np.full((len(proposed), k + 1), PAD, dtype=np.int64)
        out[:, :k] = np.where(np.arange(k) < accepted[:, None], proposed, PAD)
        out[np.arange(len(proposed)), accepted] = following
        return out


def create(function: str) -> FlashspecVerifier:
    """Make the verifier of one function."""
    return FlashspecVerifier(function)
