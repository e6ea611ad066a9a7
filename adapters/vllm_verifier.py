"""vLLM's acceptance rule by itself: the whole `RejectionSampler`, or the function inside it.

``vllm:verifier`` is the class that the engine calls once for every step: it applies the decoding
(temperature 1 here), draws the bonus token and calls ``rejection_sample``.
``vllm:rejection_sample`` is that function, with bonus tokens from the library's `Sampler`. On the
CPU of vLLM 0.32 the class hands the function logits that were divided by uninitialised memory.

Needs numpy, torch and vLLM when it is constructed, not when it is imported.
"""

from __future__ import annotations

import importlib
from typing import Any

from conformance.adapters.vllm_library import HOMEPAGE, library, register_once, version
from conformance.contract import EngineCard
from conformance.errors import EngineLoadError, UnknownEngineError
from conformance.verifier.contract import VerifierCapabilities

CLASS, FUNCTION = "RejectionSampler", "rejection_sample"


class VllmVerifier:
    """One of vLLM's ways in, on the CPU, without a generator for every row.

    Parameters
    ----------
    entry : {'RejectionSampler', 'rejection_sample'}
        What is called.

    Raises
    ------
    UnknownEngineError
        If there is no such entry.
    EngineLoadError
        If torch or vLLM is missing, or this version keeps its rule elsewhere.
    """

    def __init__(self, entry: str = CLASS) -> None:
        if entry not in (CLASS, FUNCTION):
            raise UnknownEngineError(f"vllm has no {entry!r}; there are {CLASS}, {FUNCTION}")
        self._torch, _ = library()
        try:
            importlib.import_module("vllm.platforms").current_platform.import_kernels()
            register_once()
            self._rule: Any = importlib.import_module("vllm.v1.sample.rejection_sampler")
            self._sampler: Any = importlib.import_module("vllm.v1.sample.sampler").Sampler()
            self._whole: Any = getattr(self._rule, CLASS)(self._sampler)
            self._block: Any = importlib.import_module(
                "vllm.v1.spec_decode.metadata"
            ).SpecDecodeMetadata
            self._decoding: Any = importlib.import_module(
                "vllm.v1.sample.metadata"
            ).SamplingMetadata
            self._processors: Any = importlib.import_module(
                "vllm.v1.sample.logits_processor"
            ).LogitsProcessors()
        except (ImportError, AttributeError, TypeError) as exc:
            raise EngineLoadError(f"vllm's acceptance rule cannot be reached: {exc}") from exc
        self._torch.set_num_threads(1)
        self._entry = entry
        self.card = EngineCard(
            name="vllm:verifier" if entry == CLASS else f"vllm:{entry}",
            version=version(),
            method=f"acceptance rule alone, {entry}",
            homepage=HOMEPAGE,
        )
        # probabilities become float32 whatever the model's precision is
        self.capabilities = VerifierCapabilities(dtypes=("float32",))

    def verify(
        self, target_probs: Any, draft_probs: Any | None, draft_tokens: Any, seed: int
    ) -> Any:
        """Verify blocks. [B, K + 1]"""
        torch = self._torch
        torch.manual_seed(seed)
        b, k = draft_tokens.shape
        v = target_probs.shape[-1]
        with torch.inference_mode():
            # it takes logits; those of a law are its logarithms
            logits = torch.from_numpy(target_probs).log().view(b * (k + 1), v)
            q = None if draft_probs is None else torch.from_numpy(draft_probs).reshape(b * k, v)
            tokens = self._call(self._blocks(b, k, draft_tokens), q, logits, self._sampling(b))
        return tokens.to(torch.int64).numpy()

    def _call(self, blocks: Any, q: Any, logits: Any, sampling: Any) -> Any:
        if self._entry == CLASS:
            return self._whole(blocks, q, logits, sampling).sampled_token_ids
        bonus = self._sampler(logits[blocks.bonus_logits_indices], sampling).sampled_token_ids
        return self._rule.rejection_sample(
            blocks.draft_token_ids,
            blocks.num_draft_tokens,
            blocks.max_spec_len,
            blocks.cu_num_draft_tokens,
            q,
            logits[blocks.target_logits_indices],
            bonus,
            sampling,
        )

    def _blocks(self, b: int, k: int, draft_tokens: Any) -> Any:
        """Where the rows of each block are: K of proposals, then the bonus token's."""
        torch = self._torch
        rows = torch.arange(b * (k + 1)).view(b, k + 1)
        ends = torch.arange(1, b + 1, dtype=torch.int32)
        return self._block(
            draft_token_ids=torch.from_numpy(draft_tokens).to(torch.int32).flatten(),
            num_draft_tokens=[k] * b,
            cu_num_draft_tokens=ends * k,
            cu_num_sampled_tokens=ends * (k + 1),
            target_logits_indices=rows[:, :k].flatten(),
            bonus_logits_indices=rows[:, k].contiguous(),
            logits_indices=rows.flatten(),
        )

    def _sampling(self, b: int) -> Any:
        none = self._torch.empty(0)
        return self._decoding(
            temperature=self._torch.ones(b),
            all_greedy=False,
            all_random=True,
            top_p=None,
            top_k=None,
            generators={},
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=none,
            presence_penalties=none,
            repetition_penalties=none,
            output_token_ids=[],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=self._processors,
        )


def create(entry: str) -> VllmVerifier:
    """Make the verifier of one entry."""
    return VllmVerifier(entry)
