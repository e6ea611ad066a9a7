"""vLLM driven with no code of ours: what the adapter's speed is measured against.

``PYTHON vllm.py PROBE [METHOD] [REQUESTS] [TOKENS] [PROMPT]`` prints one line of JSON. METHOD is
``ngram`` (the default), ``draft-model`` or ``draft-model-greedy``. Run with ``python -P``: this
file is called like the package it imports. Only loading takes something from here: the probe is
converted by ``adapters/vllm_probe.py``, run as a file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}

from vllm import LLM, SamplingParams  # reads its environment

CONVERTER = Path(__file__).resolve().parents[3] / "adapters" / "vllm_probe.py"
BATCH = 256
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1},
    "draft-model": {"method": "draft_model", "draft_sample_method": "probabilistic"},
    "draft-model-greedy": {"method": "draft_model", "draft_sample_method": "greedy"},
}


def main(
    probe: str,
    method: str = "ngram",
    requests: str = "2048",
    tokens: str = "8",
    prompt: str = "12",
) -> None:
    """Load, warm up with one batch, and time the rest."""
    spec = importlib.util.spec_from_file_location("vllm_probe", CONVERTER)
    assert spec is not None
    assert spec.loader is not None
    converter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(converter)
    config = json.loads((Path(probe) / "target" / "config.json").read_text("utf-8"))
    rng = random.Random(1)
    asked = [
        (
            {"prompt_token_ids": [rng.randrange(config["vocab_size"]) for _ in range(int(prompt))]},
            SamplingParams(
                temperature=1.0,
                seed=seed,
                max_tokens=int(tokens),
                ignore_eos=True,
                detokenize=False,
            ),
        )
        for seed in range(BATCH + int(requests))
    ]
    with tempfile.TemporaryDirectory() as folder:
        target, draft = (
            str(converter.widened(Path(probe) / part, Path(folder) / part))
            for part in ("target", "draft")
        )
        speculative = METHODS[method] | {"num_speculative_tokens": 3}
        llm = LLM(
            model=target,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            max_model_len=config["max_position_embeddings"],
            max_num_seqs=BATCH,
            enable_chunked_prefill=False,
            kv_cache_memory_bytes=2**28,
            speculative_config=speculative | ({} if method == "ngram" else {"model": draft}),
        )
        llm.generate(*map(list, zip(*asked[:BATCH], strict=True)), use_tqdm=False)
        done = 0
        begun = time.perf_counter()
        for i in range(BATCH, len(asked), BATCH):
            prompts, params = map(list, zip(*asked[i : i + BATCH], strict=True))
            for answer in llm.generate(prompts, params, use_tqdm=False):
                done += len(answer.outputs[0].token_ids)
        seconds = time.perf_counter() - begun
    name = "vllm" if method == "ngram" else f"vllm:{method}"
    print(
        json.dumps({"engine": name, "requests": int(requests), "tokens": done, "seconds": seconds})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
