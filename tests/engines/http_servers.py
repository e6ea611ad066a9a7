"""Small servers on loopback: some answer as the real ones do, some do not. And their clients.

The fixtures are taken over by name in the modules that use them.
"""

from __future__ import annotations

import importlib
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from conformance.adapters import openai
from conformance.adapters import openai_http as transport
from conformance.adapters.openai_http import Http, Limits, Secret
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.probes import load_probe

GOOD = {"fine": True}
SAMPLING = Decoding()


class Call:
    """One request as a server saw it."""

    def __init__(self, handler, body):
        self.verb, self.path, self.headers = handler.command, handler.path, dict(handler.headers)
        self.raw, self.handler = body, handler

    @property
    def body(self):
        return json.loads(self.raw)


class Server:
    """Answers every call with what `answer` returns: (status, body) or (status, body, headers),
    the body as bytes or as something to write as JSON; None where it wrote to the socket itself.
    """

    def __init__(self, answer, port=0, tls=None):
        self.calls, self.lock, self.busy, self.busiest = [], threading.Lock(), 0, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                size = int(self.headers.get("Content-Length") or 0)
                call = Call(self, self.rfile.read(size))
                with outer.lock:
                    outer.calls.append(call)
                    outer.busy += 1
                    outer.busiest = max(outer.busiest, outer.busy)
                try:
                    made = answer(call)
                    if made is None:
                        self.close_connection = True
                        return
                    status, body, *headers = made
                    body = body if isinstance(body, bytes) else json.dumps(body).encode()
                    self.send_response(status)
                    for name, value in headers[0].items() if headers else ():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True  # the client has gone
                finally:
                    with outer.lock:
                        outer.busy -= 1

            do_POST = do_GET

            def log_message(self, *args):
                pass

        class Quiet(ThreadingHTTPServer):
            request_queue_size = 64
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass

        self.http = Quiet(("127.0.0.1", port), Handler)
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def posts(self):
        return [call for call in self.calls if call.verb == "POST"]

    def close(self):
        self.http.shutdown()
        self.http.server_close()


class Imitation:
    """Answers as one kind of server does; every token is drawn from a uniform law by the seed.

    Parameters
    ----------
    owner : str
        What the model list says: ``vllm``, ``llamacpp``, ``sglang`` or anything.
    drafts : bool
        Whether it counts drafts.
    change : callable
        Changes an answer before it is sent, knowing the request's body.
    """

    def __init__(self, owner, drafts=True, change=None, size=32, names=("probe",)):
        self.owner, self.drafts, self.change = owner, drafts, change
        self.size, self.names, self.drafted, self.lock = size, names, 0, threading.Lock()

    def __call__(self, call):
        if call.verb == "GET":
            return self._page(call.path)
        body = call.body
        make = {"/completion": self._llama, "/generate": self._sglang}.get(call.path, self._openai)
        answer = make(body)
        if isinstance(answer, dict) and self.change is not None:
            answer = self.change(answer, body)
        return answer if isinstance(answer, tuple) else (200, answer)

    def _page(self, path):
        if path == "/v1/models":
            return 200, {"data": [{"id": n, "owned_by": self.owner} for n in self.names]}
        if path == "/metrics" and self.owner == "vllm" and self.drafts:
            label = 'engine="0",model_name="probe"'
            return 200, (
                "# TYPE vllm:spec_decode_num_draft_tokens_total counter\n"
                f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {self.drafted}.0\n"
                f"vllm:spec_decode_num_draft_tokens_created{{{label}}} 1.7e+09\n"
                f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {self.drafted / 2}\n"
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} 1.0\n'
            ).encode()
        place = {"llamacpp": "/props", "sglang": "/server_info"}.get(self.owner, "/version")
        if path == place:
            return 200, {"build_info" if self.owner == "llamacpp" else "version": "1.2.3"}
        return 404, {"detail": "Not Found"}

    def _tokens(self, count, seed):
        rng = random.Random(seed)
        with self.lock:
            self.drafted += 4 if self.drafts else 0
        return [rng.randrange(self.size) for _ in range(count)]

    def _openai(self, body):
        choices = []
        for i in range(body.get("n", 1)):
            seed = body.get("seed")
            tokens = self._tokens(body["max_tokens"], None if seed is None else seed + i)
            text = "".join(f" w{t}" for t in tokens)
            choices.append({"index": i, "text": text, "finish_reason": "length"})
            if body.get("return_token_ids") and self.owner == "vllm":
                choices[-1]["token_ids"] = tokens
        prompt = body["prompt"]
        seen = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        return {"choices": choices, "usage": {"prompt_tokens": seen}}

    def _llama(self, body):
        tokens = self._tokens(body["n_predict"], body.get("seed"))
        timings = {"predicted_n": len(tokens)}
        if self.drafts:
            timings |= {"draft_n": 4, "draft_n_accepted": 2}
        return {"tokens": tokens, "tokens_evaluated": len(body["prompt"]), "timings": timings}

    def _sglang(self, body):
        wanted = body["sampling_params"]
        tokens = self._tokens(wanted["max_new_tokens"], wanted.get("sampling_seed"))
        about = {"prompt_tokens": len(body["input_ids"]), "finish_reason": {"type": "length"}}
        if self.drafts:
            about |= {"spec_verify_ct": 2, "spec_draft_token_num": 4, "spec_accept_token_num": 2}
        return {"text": "", "output_ids": tokens, "meta_info": about}


def available():
    found = []
    for name in transport.LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        found.append(name)
    return found


@pytest.fixture(params=available() or [None])
def library(request, monkeypatch):
    """Every test goes through each of the libraries that are installed."""
    monkeypatch.setattr(transport, "LIBRARIES", (request.param,))
    return request.param


@pytest.fixture
def serve():
    servers = []

    def start(answer, **options):
        servers.append(Server(answer, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def client(library, monkeypatch):
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.01)
    clients = []

    def make(*servers, key="", urls=(), **limits):
        limits = {"timeout": 5.0, "retries": 3} | limits
        urls = [s.url for s in servers] + list(urls)
        clients.append(Http(urls, Limits(**limits), Secret(key)))
        return clients[-1]

    yield make
    for made in clients:
        made.close()


def in_turn(*answers):
    """One answer after the other; the last one again and again."""
    left, lock = list(answers), threading.Lock()

    def answer(call):
        with lock:
            made = left.pop(0) if len(left) > 1 else left[0]
        return made(call) if callable(made) else made

    return answer


def post(client, server, **body):
    return client.post_all([(server.url, body)])[0]


@pytest.fixture
def imitate():
    """Imitations of servers, closed afterwards."""
    servers = []

    def start(owner="vllm", **options):
        servers.append(Server(Imitation(owner, **options)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def load(probe_cache, monkeypatch):
    """Engines, loaded with a probe and closed afterwards."""
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.01)
    made = []

    def start(**options):
        made.append(openai.create(**options))
        made[-1].load(load_probe("mid", probe_cache).pair)
        return made[-1]

    yield start
    for engine in made:
        engine.close()


def requests(n=6, decoding=SAMPLING, speculate=True, new=8, seed=100):
    rows = np.random.default_rng(seed).integers(0, 32, (n, 12)).tolist()
    return [
        Request(tuple(row), new, decoding, None if decoding.greedy else seed + i, speculate)
        for i, row in enumerate(rows)
    ]


def evidence(server):
    """The bodies of requests after the trial."""
    return [
        c.body for c in server.posts() if len(c.body.get("prompt", c.body.get("input_ids"))) > 2
    ]
