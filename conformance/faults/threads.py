"""Where the threads are that the catalogue names."""

from __future__ import annotations

import re

REPOSITORIES = {
    "flashinfer": "flashinfer-ai/flashinfer",
    "llama.cpp": "ggml-org/llama.cpp",
    "mlx-lm": "ml-explore/mlx-lm",
    "ml-recurrent-drafter": "apple/ml-recurrent-drafter",
    "openvino.genai": "openvinotoolkit/openvino.genai",
    "rtp-llm": "alibaba/rtp-llm",
    "sglang": "sgl-project/sglang",
    "tokenspeed": "lightseekorg/tokenspeed",
    "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
    "transformers": "huggingface/transformers",
    "vllm": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
}
_THREAD = re.compile(r"([\w.-]+) #([1-9][0-9]{0,6})(?= |$)", re.ASCII)


def threads(seen: str) -> list[tuple[str, str | None]]:
    """Split what a fault was seen in, each with its address where the repository is known.

    Examples
    --------
    >>> threads("vllm #5131; several engines")
    [('vllm #5131', 'https://github.com/vllm-project/vllm/issues/5131'), ('several engines', None)]
    """
    out: list[tuple[str, str | None]] = []
    for part in filter(None, map(str.strip, seen.split(";"))):
        found = _THREAD.match(part)
        known = REPOSITORIES.get(found[1]) if found else None
        address = f"https://github.com/{known}/issues/{found[2]}" if found and known else None
        out.append((part, address))
    return out
