"""OpenVINO GenAI by itself: the loop that the adapter is measured against.

``PYTHON openvino-genai.py PROBE [METHOD] [REQUESTS] [TOKENS] [PROMPT]`` prints one line of JSON.
METHOD is ``draft-model`` (the default) or ``prompt-lookup``. Nothing of this package is in the
loop. Only loading takes something from here: the probe is converted by
``adapters/openvino_probe.py``, run as a file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

BATCH, PROPOSALS = 256, 5
CONVERTER = Path(__file__).resolve().parents[3] / "adapters" / "openvino_probe.py"


def main(
    folder_of_probe: str,
    method: str = "draft-model",
    requests: str = "2048",
    tokens: str = "8",
    prompt: str = "24",
) -> None:
    """Load, warm up with one batch, and time the rest."""
    source = Path(folder_of_probe)
    spec = importlib.util.spec_from_file_location("openvino_probe", CONVERTER)
    probe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(probe)
    config = json.loads((source / "target" / "config.json").read_text())
    words, context = config["vocab_size"], config["max_position_embeddings"]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_seqs = BATCH
    scheduler.max_num_batched_tokens = BATCH * context
    scheduler.num_kv_blocks = BATCH * (context // 16 + 1)
    common = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "INFERENCE_NUM_THREADS": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        target = probe.convert(source / "target", Path(folder) / "target")
        if method == "draft-model":
            draft = probe.convert(source / "draft", Path(folder) / "draft")
            extra = {"draft_model": openvino_genai.draft_model(draft, "CPU", **common)}
        else:
            extra = {"prompt_lookup": True}
        pipeline = openvino_genai.ContinuousBatchingPipeline(
            target, scheduler, "CPU", {**common, **extra}
        )

    rng = np.random.default_rng(0)
    seconds = done = 0
    for batch in range(-1, int(requests) // BATCH):
        ids = rng.integers(words, size=(BATCH, int(prompt))).tolist()
        begun = time.perf_counter()
        prompts = [openvino.Tensor([row]) for row in ids]
        configs = []
        for i in range(BATCH):
            one = openvino_genai.GenerationConfig()
            one.max_new_tokens, one.ignore_eos, one.do_sample = int(tokens), True, True
            one.eos_token_id, one.stop_token_ids = words, {words}
            one.rng_seed = (batch + 1) * BATCH + i
            one.num_assistant_tokens = PROPOSALS
            if method == "prompt-lookup":
                one.max_ngram_size = 2
            configs.append(one)
        results = pipeline.generate(prompts, configs)
        if batch >= 0:  # the one before is for warming up
            seconds += time.perf_counter() - begun
            done += sum(len(r.m_generation_ids[0]) for r in results)
    print(
        json.dumps(
            {
                "engine": "openvino-genai",
                "requests": int(requests) // BATCH * BATCH,
                "tokens": done,
                "seconds": round(seconds, 4),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
