"""What the author of a verifier writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from conformance.contract import EngineCard
from conformance.law import Floats
from conformance.reference import Ints

Dtype = Literal["float64", "float32", "bfloat16"]
PAD = -1


@dataclass(frozen=True, slots=True)
class VerifierCapabilities:
    """What a verifier claims to do; only claims are put to the test.

    Parameters
    ----------
    max_block : int
        The longest draft it takes, K.
    max_vocab : int
        The largest vocabulary it takes, V.
    max_batch : int
        Rows one call may carry; 1 for a verifier that takes one block at a time.
    draft_probs : bool
        Whether it can be given the draft's laws.
    one_hot : bool
        Whether it can be given ``None`` instead: every draft token was certain to be proposed.
    dtypes : tuple of {'float64', 'float32', 'bfloat16'}
        Precisions it works in. The first is used for everything; each other one gets a law of its
        own, announced by ``use_dtype(name)`` where a verifier has that method. Arrays of
        ``'bfloat16'`` come as float32 whose values bfloat16 can hold.
    bonus : bool
        Whether a fully accepted block is followed by a bonus token.
    greedy : bool
        Whether it emits the argmax of p instead of a draw from it, and is to be held to that.
    reproducible : bool
        Whether the same call with the same seed gives the same tokens.
    tree : bool
        Whether it is given draft trees: it then has `verify_tree`, and `verify` is not called.
    """

    max_block: int = 16
    max_vocab: int = 200_000
    max_batch: int = 1024
    draft_probs: bool = True
    one_hot: bool = True
    dtypes: tuple[Dtype, ...] = ("float64",)
    bonus: bool = True
    greedy: bool = False
    reproducible: bool = True
    tree: bool = False


@runtime_checkable
class Verifier(Protocol):
    """The contract. Construct without arguments.

    A verifier may also have

    ``verify_with(target_probs, draft_probs, draft_tokens, coins, last)``
        `verify` with the random numbers given: coins (B, K) decide acceptance, ``last`` (B,) draws
        the recovered or bonus token as the first one whose cumulative probability exceeds it. With
        it, events too rare for sampling are put to the test.
    ``verify_tree(target_probs, draft_probs, draft_tokens, parents, seed)``
        For trees of N nodes: target_probs (B, N + 1, V) at the root and after each node,
        draft_probs (B, N, V) or None, draft_tokens (B, N), parents (N,) with -1 for children of
        the root. Returns (B, N + 1) tokens: the accepted path and one more, padded with -1.
    """

    card: EngineCard
    capabilities: VerifierCapabilities

    def verify(
        self, target_probs: Floats, draft_probs: Floats | None, draft_tokens: Ints, seed: int
    ) -> Ints:
        """Verify B blocks of K draft tokens.

        Parameters
        ----------
        target_probs : (B, K + 1, V) float64 or float32
            The target's laws at the draft tokens and after them.
        draft_probs : (B, K, V) or None
            The draft's laws; None where every draft token was certain.
        draft_tokens : (B, K) int64
            Proposed tokens.
        seed : int
            Of every random number of this call, in [0, 2**31).

        Returns
        -------
        (B, K + 1) int
            Emitted tokens: the accepted proposals, then one recovered or bonus token, then -1.
        """
        ...
