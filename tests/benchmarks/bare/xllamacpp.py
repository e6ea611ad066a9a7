"""llama.cpp's server in process, driven with no code of ours: what the adapter is measured against.

``PYTHON xllamacpp.py PROBE [METHOD] [REQUESTS] [TOKENS] [PROMPT]`` prints one line of JSON. METHOD
is ``draft-model`` (the default) or ``match``. Run with ``python -P``: this file is called like the
package it imports. Only loading takes something from here: the probe is converted by
``adapters/gguf_probe.py``, run as a file.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xllamacpp

CONVERTER = Path(__file__).resolve().parents[3] / "adapters" / "gguf_probe.py"
SLOTS, BATCH, PROPOSALS = 8, 128, 4


def serve(target: Path, draft: Path, context: int, probabilistic: bool) -> Any:
    """A server that speculates, in float32 and on one core."""
    p = xllamacpp.CommonParams()
    p.model.path = str(target)
    p.n_parallel, p.n_ctx = SLOTS, SLOTS * context
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.cache_ram_mib, p.n_threads_http, p.verbosity = 0, 1, -1
    p.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    d = p.speculative.draft
    d.mparams.path, d.n_max, d.probabilistic = str(draft), PROPOSALS, probabilistic
    for part in (p, d):
        part.cache_type_k = part.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        part.cpuparams.n_threads = part.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(p)


def main(
    probe: str,
    method: str = "draft-model",
    requests: str = "1024",
    tokens: str = "8",
    prompt: str = "24",
) -> None:
    """Load, warm up with one batch, and time the rest."""
    spec = importlib.util.spec_from_file_location("gguf_probe", CONVERTER)
    assert spec is not None
    assert spec.loader is not None
    converter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(converter)
    config = json.loads((Path(probe) / "target" / "config.json").read_text())
    rng = random.Random(1)

    def ask(seed: int) -> dict[str, Any]:
        return {
            "prompt": [rng.randrange(config["vocab_size"]) for _ in range(int(prompt))],
            "max_tokens": int(tokens),
            "seed": seed,
            "samplers": ["top_k", "top_p", "min_p", "temperature"],
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
        }

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(SLOTS) as pool:
        files = [Path(folder) / f"{part}.gguf" for part in ("target", "draft")]
        for file in files:
            converter.write_gguf(Path(probe) / file.stem, file)
        server = serve(*files, config["max_position_embeddings"], method == "draft-model")
        asked = [ask(seed) for seed in range(BATCH + int(requests))]
        list(pool.map(server.handle_completions, asked[:BATCH]))
        done = 0
        begun = time.perf_counter()
        for i in range(BATCH, len(asked), BATCH):
            for answer in pool.map(server.handle_completions, asked[i : i + BATCH]):
                done += answer["usage"]["completion_tokens"]
        seconds = time.perf_counter() - begun
        del server
    name = "xllamacpp" if method == "draft-model" else f"xllamacpp:{method}"
    print(
        json.dumps({"engine": name, "requests": int(requests), "tokens": done, "seconds": seconds})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
