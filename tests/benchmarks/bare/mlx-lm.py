"""MLX-LM driven with no code of ours: what the adapter's speed is measured against.

``PYTHON mlx-lm.py PROBE [REQUESTS] [TOKENS] [PROMPT]`` prints one line of JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import mlx.core as mx

mx.set_default_device(mx.cpu)

from mlx_lm.generate import speculative_generate_step  # noqa: E402  # it takes the device on import
from mlx_lm.sample_utils import make_sampler  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

WARM_UP = 8


def main(probe: str, requests: str = "128", tokens: str = "8", prompt: str = "24") -> None:
    """Load, warm up, and time the rest."""
    target, config = load_model(Path(probe) / "target")
    draft, _ = load_model(Path(probe) / "draft")
    sampler, rng = make_sampler(temp=1.0), random.Random(1)
    begun, done = 0.0, 0
    for i in range(WARM_UP + int(requests)):
        if i == WARM_UP:
            begun, done = time.perf_counter(), 0
        ids = mx.array([rng.randrange(config["vocab_size"]) for _ in range(int(prompt))])
        mx.random.seed(i)
        done += sum(
            1
            for _ in speculative_generate_step(
                ids, target, draft, num_draft_tokens=3, max_tokens=int(tokens), sampler=sampler
            )
        )
    seconds = time.perf_counter() - begun
    print(
        json.dumps(
            {"engine": "mlx-lm", "requests": int(requests), "tokens": done, "seconds": seconds}
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
