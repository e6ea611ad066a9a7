"""vLLM as it is imported here: its environment, its version, and two functions put right on demand.

Imports neither torch nor vLLM at the top: `library` does.
"""

from __future__ import annotations

import functools
import importlib
import os
import traceback
from importlib import metadata
from typing import Any

from conformance.errors import EngineLoadError

HOMEPAGE = "https://github.com/vllm-project/vllm"
# One process, in which both arms live and the scheduler can be watched.
FORCED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
DEFAULTS = {  # a user's own environment overrides them
    # tiny matrices: more threads only wait for each other, and for the other processes' threads
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",  # looking up n-grams sets OpenMP's threads for everything else
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # on an error it prints a whole batch; what it raises says enough
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def library(repaired: bool = False) -> tuple[Any, Any]:
    """Torch and vLLM.

    Parameters
    ----------
    repaired : bool
        Whether two functions of the CPU backend of vLLM 0.32 are replaced by right ones, for as
        long as the process lives.

    Raises
    ------
    EngineLoadError
        If either is missing.
    """
    # read when vLLM is imported, and by OpenMP when torch is
    os.environ.update(FORCED | {k: os.environ.get(k, v) for k, v in DEFAULTS.items()})
    try:
        torch, vllm = importlib.import_module("torch"), importlib.import_module("vllm")
        if repaired:
            _repair(torch)
    except (ImportError, AttributeError) as exc:
        raise EngineLoadError(f"vllm cannot be imported: {exc}; conformance setup vllm") from exc
    return torch, vllm


def register_once() -> None:
    """Let vLLM put its CPU kernels in the place of Triton's once in a process, not for every LLM.

    It finds them by looking at every object of every module, which fails on some of numba's once
    n-grams have been looked up: no LLM could be made after that.
    """
    platform = importlib.import_module("vllm.platforms").current_platform
    register = platform.register_triton_kernel_overrides
    if getattr(register, "__name__", "") != "registered":

        def registered() -> None:
            """They are."""

        register()
        platform.register_triton_kernel_overrides = registered


def version() -> str:
    """Of vLLM, without importing it."""
    for distribution in ("vllm-cpu", "vllm"):  # the same package, built for the CPU and for CUDA
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def is_refusal(exc: BaseException) -> bool:
    """Whether vLLM blames the request."""
    return isinstance(exc, ValueError) or any(
        kind.__name__ == "VLLMClientError" for kind in type(exc).__mro__
    )


def passed(exc: BaseException, function: str) -> bool:
    """Whether an exception came through a function of that name."""
    return any(f.f_code.co_name == function for f, _ in traceback.walk_tb(exc.__traceback__))


def _repair(torch: Any) -> None:
    sampler: Any = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler")
    kernels: Any = importlib.import_module("vllm.utils.cpu_triton_utils")
    top_k = getattr(sampler.apply_top_k_only, "__wrapped__", sampler.apply_top_k_only)

    def expand(output: Any, given: Any, ends: Any, old: Any, new: Any, *_: Any) -> None:
        """One value for every request to one for every proposal, into `output`."""
        lengths = torch.diff(ends, prepend=ends.new_zeros(1))
        output.copy_(given.masked_fill(given == old, new).repeat_interleave(lengths))

    @functools.wraps(top_k)
    def apply_top_k_only(logits: Any, k: Any) -> Any:
        return top_k(logits, k) if len(k) else logits

    kernels._expand_kernel_impl = expand
    sampler.apply_top_k_only = apply_top_k_only
