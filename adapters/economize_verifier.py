"""economize's verifiers: rejection sampling of chains and trees, and rules declared lossy."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from conformance.contract import EngineCard
from conformance.errors import EngineLoadError, UnknownEngineError
from conformance.law import Floats
from conformance.reference import Ints
from conformance.verifier.contract import PAD, VerifierCapabilities

HOMEPAGE = "https://github.com/Thiggel/economize"
MODULE = "economize.decoding"


@dataclass(frozen=True, slots=True)
class Method:
    """One way to verify.

    Parameters
    ----------
    registered : str
        The library's name for it.
    words : str
        The method as the card prints it.
    rule : str
        What the library declares of it.
    tree, greedy : bool
        As in `VerifierCapabilities`.
    """

    registered: str
    words: str
    rule: str = "exact"
    tree: bool = False
    greedy: bool = False


METHODS = {
    "rejection": Method("rejection", "rejection sampling of a chain"),
    "rejection-tree": Method("rejection", "recursive rejection sampling of a tree", tree=True),
    "typical": Method("typical", "typical acceptance", "lossy: typical acceptance"),
    "accept_all": Method("accept_all", "no verification", "lossy: drafts are final"),
    "greedy": Method("greedy", "greedy verification of a chain", greedy=True),
    "greedy-tree": Method("greedy", "greedy verification of a tree", tree=True, greedy=True),
}


class EconomizeVerifier:
    """One of economize's verifiers, with its own sampler at temperature 1.

    Parameters
    ----------
    method : str
        A key of `METHODS`.

    Raises
    ------
    UnknownEngineError
        If there is no such method.
    EngineLoadError
        If torch or economize is missing.
    """

    def __init__(self, method: str) -> None:
        if method not in METHODS:
            raise UnknownEngineError(
                f"economize has no verifier {method!r}; there are {', '.join(METHODS)}"
            )
        self._method = METHODS[method]
        try:
            self._torch: Any = importlib.import_module("torch")
            self._library: Any = importlib.import_module(MODULE)
        except ImportError as exc:
            raise EngineLoadError(
                f"economize cannot be loaded: {exc}; pip install 'specdec-conformance[economize]'"
            ) from exc
        self._torch.set_num_threads(1)
        name = self._method.registered
        config = self._library.DecodeConfig(verifier=name)
        self._rule: Any = self._library.VERIFIERS.get(name)(config)
        self.card = EngineCard(
            name=f"economize:{method}",
            version=metadata.version("economize"),
            method=self._method.words,
            homepage=HOMEPAGE,
            rule=self._method.rule,
        )
        self.capabilities = VerifierCapabilities(
            max_batch=1024,
            # `multinomial` of torch takes no more categories
            max_vocab=2**24,
            dtypes=("float32",),
            tree=self._method.tree,
            greedy=self._method.greedy,
        )

    def verify(
        self, target_probs: Floats, draft_probs: Floats | None, draft_tokens: Ints, seed: int
    ) -> Ints:
        """Verify chains. [B, K + 1]"""
        b, k = draft_tokens.shape
        draft = self._draft(draft_tokens, draft_probs)
        history = self._torch.from_numpy(draft_tokens)  # what precedes it is nobody's concern
        with self._torch.inference_mode():
            accepted, following = self._rule.verify_batch(
                self._torch.from_numpy(target_probs).log(),
                draft,
                self._selector(seed),
                history,
                [0] * b,
            )
        out = np.full((b, k + 1), PAD, dtype=np.int64)
        n = accepted.numpy()
        out[:, :k] = np.where(np.arange(k) < n[:, None], draft_tokens, PAD)
        out[np.arange(b), n] = following.numpy()
        return out

    def verify_tree(
        self,
        target_probs: Floats,
        draft_probs: Floats | None,
        draft_tokens: Ints,
        parents: Ints,
        seed: int,
    ) -> Ints:
        """Verify trees. [B, N + 1]"""
        b, n = draft_tokens.shape
        above = self._torch.from_numpy(np.broadcast_to(parents, (b, n)).copy())
        draft = self._draft(draft_tokens, draft_probs, above)
        with self._torch.inference_mode():
            paths, following = self._rule.verify_tree(
                self._torch.from_numpy(target_probs).log(), draft, self._selector(seed)
            )
        out = np.full((b, n + 1), PAD, dtype=np.int64)
        for row, (path, last) in enumerate(zip(paths, following, strict=True)):
            out[row, : len(path)] = draft_tokens[row, path]
            out[row, len(path)] = last
        return out

    def _draft(self, tokens: Ints, probs: Floats | None, parents: Any = None) -> Any:
        return self._library.Draft(
            tokens=self._torch.from_numpy(tokens),
            lengths=[tokens.shape[1]] * len(tokens),
            parents=parents,
            probs=None if probs is None else self._torch.from_numpy(probs),
        )

    def _selector(self, seed: int) -> Any:
        if self._method.greedy:
            return self._library.GreedySelector()
        return self._library.TopPSampler(temperature=1.0, top_p=1.0, seed=seed)


def create(method: str) -> EconomizeVerifier:
    """Make the verifier of one method."""
    return EconomizeVerifier(method)
