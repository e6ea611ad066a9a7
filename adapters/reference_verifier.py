"""The reference's acceptance rule as a verifier, exact or made wrong on purpose."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from conformance._version import __version__
from conformance.adapters.exact_rules import EXACT_RULES
from conformance.contract import EngineCard
from conformance.decoding import Decoding
from conformance.errors import UnknownEngineError
from conformance.faults import parse_fault
from conformance.faults.steps import EXACT_STEPS, Block, Steps
from conformance.law import Floats
from conformance.reference import Ints
from conformance.verifier.contract import VerifierCapabilities

# what a fault may change and still be a fault of the verifier
OWN_STEPS = ("verify", "extra")
# What a fault may need: a verifier knows of no decoding and no request, it is given the laws after.
SEEN = ("anything", "sampling")
# needs a filter for tokens of probability 0, which some laws that a verifier is given have anyway
GIVEN = ("zero-coin",)
# faults that reuse random numbers which a verifier never sees
ELSEWHERE = ("shared-stream",)


class RuleVerifier:
    """Any way to verify a block that the reference engine has, drawing its own random numbers.

    Parameters
    ----------
    steps : Steps
        Whose ``verify`` is used.
    name : str
        Name on the card.
    declared : str
        The rule it declares.
    """

    def __init__(
        self,
        steps: Steps = EXACT_STEPS,
        name: str = "reference:verifier",
        declared: str = "exact",
    ) -> None:
        self._steps = steps
        self.card = EngineCard(
            name=name,
            version=__version__,
            method="acceptance rule alone",
            homepage="https://proceedings.mlr.press/v202/leviathan23a.html",
            rule=declared,
        )
        self.capabilities = VerifierCapabilities(
            max_batch=4096,
            max_vocab=200_000,
        )

    def verify(
        self, target_probs: Floats, draft_probs: Floats | None, draft_tokens: Ints, seed: int
    ) -> Ints:
        """Verify blocks with random numbers that follow from the seed."""
        b, k = draft_tokens.shape
        u = np.random.Generator(np.random.Philox(key=seed)).random((b, k + 1 + self._steps.extra))
        return self._verify(
            target_probs, draft_probs, draft_tokens, u[:, :k], u[:, k], u[:, k + 1 :]
        )

    def _verify(
        self, p: Floats, q: Floats | None, x: Ints, coins: Floats, last: Floats, extra: Floats
    ) -> Ints:
        if q is None:  # every proposal was certain
            q = np.zeros((*x.shape, p.shape[-1]))
            np.put_along_axis(q, x[..., None], 1.0, axis=-1)
        with np.errstate(divide="ignore"):
            logits, draft_logits = np.log(p), np.log(q)
        block = Block(
            p=p,
            q=q,
            drafts=x,
            proposing=coins,
            coins=coins,
            last=last,
            extra=extra,
            target_logits=logits,
            draft_logits=draft_logits,
            decoding=Decoding(),
            start=np.zeros(len(x), dtype=np.int64),
            prompts=np.zeros((len(x), 1), dtype=np.int64),
            before=np.zeros(len(x), dtype=np.int64),
        )
        return self._steps.verify(block).tokens


class ReferenceVerifier(RuleVerifier):
    """`conformance.reference.verify`, or that with a fault: it takes the random numbers too."""

    def verify_with(
        self,
        target_probs: Floats,
        draft_probs: Floats | None,
        draft_tokens: Ints,
        coins: Floats,
        last: Floats,
    ) -> Ints:
        """Verify blocks with the random numbers given."""
        extra = np.random.default_rng(0).random((len(draft_tokens), self._steps.extra))
        return self._verify(target_probs, draft_probs, draft_tokens, coins, last, extra)


def verifier() -> ReferenceVerifier:
    """The exact rule."""
    return ReferenceVerifier()


def faulty_verifier(text: str) -> ReferenceVerifier:
    """The rule with a fault from the catalogue, ``NAME`` or ``NAME=x``.

    Raises
    ------
    UnknownEngineError
        If there is no such fault, or it is not in the way a block is verified.
    """
    fault, _ = parse_fault(text)
    steps = _own(fault.steps(), f"faulty:{text}")
    unseen = fault.needs not in SEEN and fault.name not in GIVEN
    if unseen or fault.name in ELSEWHERE:
        raise UnknownEngineError(_around(f"faulty:{text}"))
    declared = f"deliberately wrong: {fault.summary}"
    return ReferenceVerifier(steps, f"faulty:{text}:verifier", declared)


def exact_verifier(name: str) -> RuleVerifier:
    """Another exact rule.

    Raises
    ------
    UnknownEngineError
        If there is no such rule, or it is not in the way a block is verified.
    """
    if name not in EXACT_RULES:
        raise UnknownEngineError(
            f"no exact rule named {name!r}; there are {', '.join(EXACT_RULES)}"
        )
    rule = EXACT_RULES[name]
    steps = _own(rule.steps, f"exact:{name}")
    return RuleVerifier(steps, f"exact:{name}:verifier")


def _own(steps: Steps, engine: str) -> Steps:
    """The steps, if they are a verifier's own.

    Raises
    ------
    UnknownEngineError
        If they differ from the exact ones elsewhere, or not at all where a verifier could.
    """
    around = [
        f.name
        for f in fields(steps)
        if f.name not in OWN_STEPS and getattr(steps, f.name) is not getattr(EXACT_STEPS, f.name)
    ]
    if around or steps.verify is EXACT_STEPS.verify:
        raise UnknownEngineError(_around(engine))
    return steps


def _around(engine: str) -> str:
    return (
        f"what {engine} does is in the engine around the verifier, not in the verifier; run it as "
        f"{engine}"
    )
