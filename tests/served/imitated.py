"""Servers on loopback that answer as real ones do, from a small law; and a run against them."""

from __future__ import annotations

import math
import random

import pytest
from http_servers import Imitation, Server

from conformance.adapters import openai_http as transport
from conformance.decoding import Decoding
from conformance.runner import Settings, judge_cases, prepare

SAMPLING = Decoding()


class Plain(Imitation):
    """A server whose every token is drawn from an uneven law of three, by the seed; token 2 ends.

    `sharp` is what makes another law of it, `forget` keeps so many seeds apart, `sticky` is how
    often the last answer to the prompt is given again.
    """

    def __init__(self, owner="vllm", drafts=False, change=None, sharp=1.0, forget=0, sticky=0.0):
        super().__init__(owner, drafts, change, size=3)
        self.sharp, self.forget, self.sticky, self.last = sharp, forget, sticky, {}

    def _tokens(self, count, seed):
        with self.lock:
            self.drafted += 64 if self.drafts else 0
        if seed is None:  # greedy
            return [0] * count
        rng = random.Random(seed % self.forget if self.forget else seed)
        weights = [0.5**self.sharp, 0.35**self.sharp, 0.15**self.sharp]
        tokens = []
        while len(tokens) < count and 2 not in tokens:
            tokens += rng.choices(range(3), weights)
        return tokens

    def _openai(self, body):
        prompt = str(body["prompt"])
        if random.random() < self.sticky and prompt in self.last:
            return self.last[prompt]
        answer = self.last[prompt] = super()._openai(body)
        choice = answer["choices"][0]
        if "2" in choice["text"]:
            choice["finish_reason"] = "stop"
        return answer

    def _sglang(self, body):
        return super()._sglang(body | {"input_ids": body["text"].split()})


class Telling(Plain):
    """Tells the law of its tokens too.

    `told` is what makes another law of that alone, `noise` how far each log-probability is off, and
    `spoil` changes what is told: it gets (token, log-probability) pairs of one place.
    """

    def __init__(self, *args, told=1.0, noise=0.0, spoil=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.told, self.noise, self.spoil = told, noise, spoil

    def _pairs(self, most):
        weights = [w ** (self.sharp * self.told) for w in (0.5, 0.35, 0.15)]
        weights = [w * math.exp(random.gauss(0, self.noise)) for w in weights]
        logs = [math.log(w / sum(weights)) for w in weights]
        pairs = sorted(enumerate(logs), key=lambda t: -t[1])[:most]
        return self.spoil(pairs) if self.spoil else pairs

    def _openai(self, body):
        answer = super()._openai(body)
        choice, prompt = answer["choices"][0], body["prompt"]
        if body.get("logprobs") and body.get("return_tokens_as_token_ids"):
            told = [
                {f"token_id:{t}": x for t, x in self._pairs(body["logprobs"])}
                for _ in choice["token_ids"]
            ]
            choice["logprobs"] = {"top_logprobs": told}
        words = prompt.split() if isinstance(prompt, str) else prompt
        choice["prompt_token_ids"] = [100 + i for i, _ in enumerate(words)]
        return answer

    def _sglang(self, body):
        ids = body.get("input_ids") or body["text"].split()
        answer = Imitation._sglang(self, body | {"input_ids": ids})
        if body.get("return_logprob"):
            about = answer["meta_info"]
            about["output_top_logprobs"] = [
                [[x, t, None] for t, x in self._pairs(body["top_logprobs_num"])]
                for _ in answer["output_ids"]
            ]
            about["input_token_logprobs"] = [[None, 100 + i, None] for i, _ in enumerate(ids)]
        return answer

    def _llama(self, body):
        answer = super()._llama(body)
        prompt = body["prompt"]
        words = prompt.split() if isinstance(prompt, str) else [*prompt[0].split(), *prompt[1:]]
        answer["tokens_evaluated"] = len(words)
        if most := body.get("n_probs"):
            answer["completion_probabilities"] = [
                {"id": 0, "top_logprobs": [{"id": t, "logprob": x} for t, x in self._pairs(most)]}
                for _ in answer["tokens"]
            ]
        return answer


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.01)
    servers = []

    def begin(answer):
        servers.append(Server(answer))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("one two\n\nthree four\none two\n" + "".join(f"p {i} q\n" for i in range(14)))
    return path


@pytest.fixture
def pair(tmp_path):
    path = tmp_path / "pair.txt"
    path.write_text("one two\nthree four\n")
    return path


def name(spec, control, prompts, **options):
    more = "".join(f",{k}={v}" for k, v in options.items())
    return f"served,url={spec.url},control={control.url},prompts={prompts}{more}"


def judged(folder, *names, decodings=(SAMPLING,), profile="smoke", **settings):
    asked = prepare(Settings(names, decodings, profile=profile, **settings))
    return asked, list(judge_cases(asked, folder, jobs=1))
