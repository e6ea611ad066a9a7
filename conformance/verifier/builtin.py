"""The verifiers that come with the suite, by the name a person types."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

SUFFIX = ":verifier"


@dataclass(frozen=True, slots=True)
class BuiltinVerifier:
    """A verifier that comes with the suite.

    Parameters
    ----------
    module, factory : str
        Where its factory is.
    summary : str
        For ``conformance engines``.
    argument : str
        What the factory is called with; nothing if empty.
    requires : str
        The distribution that must be installed, empty if none.
    """

    module: str
    factory: str
    summary: str
    argument: str = ""
    requires: str = ""

    @property
    def installed(self) -> str | None:
        """Version of the required distribution; None if it is missing."""
        try:
            return version(self.requires or "specdec-conformance")
        except PackageNotFoundError:
            return None

    def make(self) -> object:
        """Construct it."""
        factory = getattr(importlib.import_module(self.module), self.factory)
        made: object = factory(self.argument) if self.argument else factory()
        return made


_REFERENCE = "conformance.adapters.reference_verifier"
_FLASHSPEC = "conformance.adapters.flashspec_verifier"
_ECONOMIZE = "conformance.adapters.economize_verifier"


def _flashspec(function: str) -> BuiltinVerifier:
    return BuiltinVerifier(_FLASHSPEC, "create", f"flashspec, {function}", function, "flashspec")


def _economize(rule: str, what: str) -> BuiltinVerifier:
    return BuiltinVerifier(_ECONOMIZE, "create", f"economize, {what}", rule, "economize")


VERIFIERS: dict[str, BuiltinVerifier] = {
    "reference:verifier": BuiltinVerifier(
        _REFERENCE, "verifier", "this suite's own exact acceptance rule"
    ),
    "faulty:resample-from-p:verifier": BuiltinVerifier(
        _REFERENCE, "faulty_verifier", "the rule made wrong on purpose", "resample-from-p"
    ),
    "exact:block-verification:verifier": BuiltinVerifier(
        _REFERENCE, "exact_verifier", "another exact rule, which must pass", "block-verification"
    ),
    "transformers:verifier": BuiltinVerifier(
        "conformance.adapters.transformers_verifier",
        "verifier",
        "Hugging Face transformers, the rule of assisted generation",
        requires="transformers",
    ),
    "flashspec:verifier": _flashspec("rejection_step"),
    "flashspec:rejection_sample": _flashspec("rejection_sample"),
    "flashspec:rejection_step_onehot": _flashspec("rejection_step_onehot"),
    "economize:verifier": _economize("rejection", "rejection sampling of chains"),
    "economize:rejection": _economize("rejection", "rejection sampling of chains"),
    "economize:rejection-tree": _economize("rejection-tree", "rejection sampling of trees"),
    "economize:typical": _economize("typical", "typical acceptance, declared lossy"),
    "economize:accept-all": _economize("accept_all", "no verification, declared lossy"),
    "economize:greedy": _economize("greedy", "greedy verification of chains"),
    "economize:greedy-tree": _economize("greedy-tree", "greedy verification of trees"),
}


def builtin_verifier(name: str) -> BuiltinVerifier | None:
    """The built-in verifier of that name; ``faulty:FAULT:verifier`` takes any fault, and
    ``exact:RULE:verifier`` any exact rule.
    """
    if name in VERIFIERS:
        return VERIFIERS[name]
    head, _, rest = name.removesuffix(SUFFIX).partition(":")
    if name.endswith(SUFFIX) and head in ("faulty", "exact"):
        return BuiltinVerifier(_REFERENCE, f"{head}_verifier", "", rest)
    return None
