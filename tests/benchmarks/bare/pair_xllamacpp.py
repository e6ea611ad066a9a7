"""Speculative against plain generation of llama.cpp's server, with no code of ours: what
``conformance bench xllamacpp`` is confirmed by.

``PYTHON pair_xllamacpp.py FOLDER PROMPTS TOKENS WARMUP`` prints one line of JSON; arguments as of
``pair_transformers.py``. Only loading takes something from here, the conversion of the models by
``adapters/gguf_probe.py``, run as a file. Run with ``python -P``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import xllamacpp

CONVERTER = Path(__file__).resolve().parents[3] / "adapters" / "gguf_probe.py"
SLOTS, PROPOSALS = 8, 4


def serve(target: Path, draft: Path | None, context: int) -> Any:
    """A server in float32 and on one core; it speculates if there is a draft."""
    p = xllamacpp.CommonParams()
    p.model.path = str(target)
    p.n_parallel, p.n_ctx = SLOTS, SLOTS * context
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.cache_ram_mib, p.n_threads_http, p.verbosity = 0, 1, -1
    parts = [p]
    if draft is not None:
        kind = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        p.speculative.types = [kind]
        d = p.speculative.draft
        d.mparams.path, d.n_max, d.probabilistic = str(draft), PROPOSALS, True
        parts.append(d)
    for part in parts:
        part.cache_type_k = part.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        part.cpuparams.n_threads = part.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(p)


def main(folder: str, prompts: str, tokens: str, warmup: str) -> None:
    """Ask both servers in turn, the first of a pair first or second by turns."""
    spec = importlib.util.spec_from_file_location("gguf_probe", CONVERTER)
    assert spec is not None
    assert spec.loader is not None
    converter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(converter)
    context = json.loads((Path(folder) / "target" / "config.json").read_text())
    asked = [json.loads(line)["prompt"] for line in Path(prompts).read_text().splitlines()]
    pairs = []
    with tempfile.TemporaryDirectory() as made:
        files = [Path(made) / f"{part}.gguf" for part in ("target", "draft")]
        for file in files:
            converter.write_gguf(Path(folder) / file.stem, file)
        size = context["max_position_embeddings"]
        servers = {True: serve(*files, size), False: serve(files[0], None, size)}

        def ask(ids: list[int], seed: int, speculate: bool) -> float:
            request = {
                "prompt": ids,
                "max_tokens": int(tokens),
                "seed": seed,
                "samplers": ["top_k", "top_p", "min_p", "temperature"],
                "temperature": 1.0,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
            }
            begun = time.perf_counter()
            answer = servers[speculate].handle_completions(request)
            seconds = time.perf_counter() - begun
            assert answer["usage"]["completion_tokens"] == int(tokens)
            return seconds

        for i, ids in enumerate(asked):
            order = (True, False) if i % 2 == 0 else (False, True)
            took = {speculate: ask(ids, i, speculate) for speculate in order}
            if i >= int(warmup):
                pairs.append((took[True], took[False]))
        servers.clear()
    print(json.dumps({"engine": "xllamacpp", "pairs": pairs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
