"""Verifiers that break the contract, each in a way of its own."""

from __future__ import annotations

import os
import time

import numpy as np

from conformance.adapters.reference_verifier import RuleVerifier
from conformance.errors import NotSupportedError
from conformance.verifier import VerifierCapabilities


class _Wrong(RuleVerifier):
    def __init__(self):
        super().__init__(name=type(self).__name__)
        self.capabilities = VerifierCapabilities(max_block=4, max_vocab=16, dtypes=("float64",))

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        return self.spoil(super().verify(target_probs, draft_probs, draft_tokens, seed))


class WrongShape(_Wrong):
    def spoil(self, tokens):
        return tokens[:, :-1]


class OneRowMissing(_Wrong):
    def spoil(self, tokens):
        return tokens[1:]


class NotANumber(_Wrong):
    def spoil(self, tokens):
        return np.where(tokens < 0, np.nan, tokens)


class Floats(_Wrong):
    def spoil(self, tokens):
        return tokens.astype(float)


class Nothing(_Wrong):
    def spoil(self, tokens):
        return None


class Raises(_Wrong):
    def spoil(self, tokens):
        raise RuntimeError("no such luck")


class Hangs(_Wrong):
    def spoil(self, tokens):
        time.sleep(60)


class Dies(_Wrong):
    def spoil(self, tokens):
        os._exit(3)


class Chatters(_Wrong):
    def spoil(self, tokens):
        print("verified!", flush=True)
        return tokens


class AfterPadding(_Wrong):
    def spoil(self, tokens):
        tokens[0] = [*tokens[0, :1], -1, *tokens[0, 2:]] if tokens.shape[1] > 2 else tokens[0]
        if tokens.shape[1] > 2:
            tokens[0, 2] = 0
        return tokens


class Padded(_Wrong):
    """The padded column of an output layer: id V."""

    def spoil(self, tokens):
        tokens[0, 0] = 16
        return tokens


class Negative(_Wrong):
    def spoil(self, tokens):
        tokens[0, 0] = -7
        return tokens


class Huge(_Wrong):
    def spoil(self, tokens):
        return np.where(tokens == 0, 2**60, tokens)


class Silent(_Wrong):
    """Emits nothing for some rows."""

    def spoil(self, tokens):
        tokens[0] = -1
        return tokens


class GoesOn(_Wrong):
    """Corrects an accepted token and goes on with what was verified after the proposal."""

    def spoil(self, tokens):
        long = (tokens >= 0).sum(axis=1) > 1
        tokens[long, 0] = (tokens[long, 0] + 1) % 6
        return tokens


class OffThePath(_Wrong):
    """A tree's path that leaves the tree."""

    def __init__(self):
        super().__init__()
        self.capabilities = VerifierCapabilities(max_vocab=16, tree=True)

    def verify_tree(self, target_probs, draft_probs, draft_tokens, parents, seed):
        out = np.full((len(draft_tokens), draft_tokens.shape[1] + 1), -1)
        out[:, 0] = draft_tokens[:, 0]
        out[:, 1] = draft_tokens[:, 4]  # a child of the root's other child
        out[:, 2] = 0
        return out


class WritesOnInputs(_Wrong):
    """Spoils what it was given; that is its own copy."""

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        out = RuleVerifier.verify(self, target_probs, draft_probs, draft_tokens, seed)
        target_probs[:] = np.nan
        draft_tokens[:] = 0
        return out


class Refuses(_Wrong):
    """Refuses one law out loud."""

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        if target_probs.shape[-1] == 12:
            raise NotSupportedError("twelve tokens are bad luck")
        return RuleVerifier.verify(self, target_probs, draft_probs, draft_tokens, seed)


class RefusesAll(_Wrong):
    def spoil(self, tokens):
        raise NotSupportedError("not today")


class BadClaims(_Wrong):
    def __init__(self):
        super().__init__()
        self.capabilities = VerifierCapabilities(max_batch=0)


class OtherClaims(_Wrong):
    def __init__(self):
        super().__init__()
        self.capabilities = {"max_batch": 1}


class NoCard:
    capabilities = VerifierCapabilities()

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        return draft_tokens


class OneSeed(_Wrong):
    """Ignores the seed."""

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        return RuleVerifier.verify(self, target_probs, draft_probs, draft_tokens, 7)


class SharedRows(_Wrong):
    """Every row of a call is verified with the same random numbers."""

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        b, k = draft_tokens.shape
        u = np.broadcast_to(np.random.default_rng(seed).random(k + 1), (b, k + 1))
        none = np.zeros((b, 0))
        return self._verify(target_probs, draft_probs, draft_tokens, u[:, :k], u[:, k], none)


class Moody(_Wrong):
    """Claims to be reproducible and is not."""

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        fresh = int.from_bytes(os.urandom(4), "little")
        return RuleVerifier.verify(self, target_probs, draft_probs, draft_tokens, fresh)


class NeverAccepts(_Wrong):
    """Plain sampling: exact, and no speculation at all."""

    def spoil(self, tokens):
        raise NotImplementedError

    def verify(self, target_probs, draft_probs, draft_tokens, seed):
        out = np.full((len(draft_tokens), draft_tokens.shape[1] + 1), -1)
        u = np.random.default_rng(seed).random(len(out))
        cdf = target_probs[:, 0].cumsum(axis=1)
        out[:, 0] = (cdf <= (u * cdf[:, -1])[:, None]).sum(axis=1)
        return out
