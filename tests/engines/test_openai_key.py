"""Where requests go, and where the key does not."""

from __future__ import annotations

import base64
import json
import logging
import shutil
import ssl
import subprocess
import time
import traceback
from urllib.parse import quote

import http_servers
import pytest
from http_servers import GOOD, in_turn, post

from conformance.adapters import openai_http as transport
from conformance.adapters.openai_http import Secret, address
from conformance.errors import EngineFailure, EngineLoadError, UnknownEngineError

KEY = "sk-Probe/0123456789+abcdefXYZ"
serve, client, library = http_servers.serve, http_servers.client, http_servers.library
pytestmark = pytest.mark.skipif(not http_servers.available(), reason="no HTTP library is installed")


# --- where requests go ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_not_followed(serve, client, status):
    other = serve(in_turn((200, GOOD)))
    server = serve(in_turn((status, b"", {"Location": other.url})))
    made = client(server, key=KEY)
    with pytest.raises(EngineFailure, match="redirection") as caught:
        post(made, server)
    assert other.url not in str(caught.value)
    assert made.get(server.url) is None
    assert other.calls == []


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_no_proxy_between_this_machine_and_itself(serve, client, variable, monkeypatch):
    proxy, server = serve(in_turn((200, {"proxy": True}))), serve(in_turn((200, GOOD)))
    monkeypatch.setenv(variable, proxy.url.removesuffix("/v1"))
    assert post(client(server), server) == GOOD
    far = "http://probe.invalid/v1"
    assert client(server, urls=[far]).post_all([(far, {})]) == [{"proxy": True}]
    assert [call.path for call in proxy.calls] == [far]


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.8.9.1/v1", True),
        ("http://[::1]:80/v1", True),
        ("http://localhost:80/v1", True),
        ("http://localhost.example/v1", False),
        ("http://10.0.0.1/v1", False),
        ("https://example.com", False),
    ],
)
def test_what_is_this_machine(url, own):
    assert transport.is_loopback(url) is own


def test_a_certificate_that_nobody_signed_is_refused_once(serve, client, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    names = ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server = serve(in_turn((200, GOOD)), tls=tls)
    begin = time.monotonic()
    with pytest.raises(EngineFailure, match=r"cannot connect .*CERTIFICATE_VERIFY_FAILED"):
        post(client(server, key=KEY, retries=20), server)
    assert time.monotonic() - begin < 2
    assert server.calls == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000/v1",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        f"http://user:{KEY.replace('/', '')}@host/v1",
        f"http://host/v1?api_key={KEY}",
        f"http://host/v1#{KEY}",
        "http://host:99999/v1",
        "http://host:x/v1",
        "http://host/v1\r\nX: y",
        "http://ho st/v1",
    ],
)
def test_an_address_that_is_none_is_not_repeated(url):
    with pytest.raises(UnknownEngineError, match="option url must be http") as caught:
        address(url, "url")
    assert "sk-Probe" not in str(caught.value)


# --- the key --------------------------------------------------------------------------------------


def echo_key(status, how):
    """A server that repeats the key it was sent, in an answer of some status."""

    def answer(call):
        sent = call.headers["Authorization"].removeprefix("Bearer ")
        return status, how(sent), {"X-Sent": sent, "Set-Cookie": f"k={sent}"}

    return answer


HOWS = {
    "message": lambda key: {"error": {"message": f"Incorrect API key provided: {key}."}},
    "text": lambda key: f"no such key {key}, {key.upper()}".encode(),
    "nested": lambda key: {"detail": [{"input": {"headers": {"authorization": key}}}]},
    "bare": lambda key: json.dumps(key).encode(),
    "a piece": lambda key: f"key {key[:12]}... is not known".encode(),
    "base64": lambda key: base64.b64encode(f"user:{key}".encode()),
    "quoted": lambda key: quote(key, safe="").encode(),
    "at the end": lambda key: ("x" * (20 * transport.QUOTED - 12) + key).encode(),
    "over the edge": lambda key: ("x" * (transport.QUOTED - 10) + key).encode(),
}


@pytest.mark.parametrize("status", [200, 400, 401, 403, 422, 429, 500, 503])
@pytest.mark.parametrize("how", list(HOWS))
def test_a_key_that_a_server_repeats_is_shown_nowhere(
    serve, client, how, status, caplog, capfd, monkeypatch
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(transport.KEY_VARIABLE, KEY)
    server = serve(echo_key(status, HOWS[how]))
    made = client(server, key=KEY, retries=1)
    try:
        answer = post(made, server)
    except EngineFailure as exc:
        shown = [str(exc), repr(exc), exc.detail, traceback.format_exc()]
    else:
        assert how in ("message", "nested")  # an object; whoever reads it has to quote it
        shown = [made.quoted(answer)]
    out = capfd.readouterr()
    shown += [caplog.text, out.out, out.err, repr(made), repr(vars(made))]
    for text in shown:
        for i in range(len(KEY) - 9):
            assert KEY[i : i + 10].lower() not in text.lower(), (how, status, text)
        assert base64.b64encode(f"user:{KEY}".encode()).decode()[12:24] not in text
    assert server.calls[0].headers["Authorization"] == f"Bearer {KEY}"


def test_without_a_key_no_header_is_sent(serve, client):
    server = serve(in_turn((401, {"error": "who are you?"})))
    with pytest.raises(EngineFailure, match="wants a key: set CONFORMANCE_API_KEY"):
        post(client(server), server)
    assert "Authorization" not in server.calls[0].headers


@pytest.mark.parametrize("bad", ["two words", "line\n", "tab\t", "ключ", "nul\0"])
def test_a_key_that_no_header_can_carry_is_not_shown(bad, monkeypatch):
    with pytest.raises(EngineLoadError, match="CONFORMANCE_API_KEY") as caught:
        Secret(bad)
    assert bad not in str(caught.value)


def test_what_is_cut_out():
    assert repr(Secret(KEY)) == "[key]"
    assert Secret(KEY).redact(f"a {KEY} b {KEY}") == "a [key] b [key]"
    assert Secret(KEY).redact("İ" + KEY) == "İ[key]"
    assert Secret("short").redact("a short word") == "a [key] word"
    assert Secret("").redact("nothing to hide") == "nothing to hide"
