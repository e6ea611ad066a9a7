"""How requests travel: what is sent again, what is not, and what is bounded."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from email.utils import formatdate

import http_servers
import pytest
from http_servers import GOOD, in_turn, post

from conformance.adapters import openai_http as transport
from conformance.errors import BadAnswerError, EngineFailure

serve, client, library = http_servers.serve, http_servers.client, http_servers.library
pytestmark = pytest.mark.skipif(not http_servers.available(), reason="no HTTP library is installed")


# --- what is sent again ---------------------------------------------------------------------------


@pytest.mark.parametrize("header", [{}, {"Retry-After": "0"}, {"Retry-After": "soon"}])
def test_429_is_sent_again_with_the_same_bytes(serve, client, header):
    server = serve(in_turn((429, {"error": "busy"}, header), (200, GOOD)))
    assert post(client(server), server, seed=7) == GOOD
    first, second = server.posts()
    assert first.raw == second.raw
    assert first.body == {"seed": 7}


def test_503_is_sent_again_only_if_it_says_when_to_come_back(serve, client):
    server = serve(in_turn((503, {}, {"Retry-After": "0"}), (200, GOOD)))
    assert post(client(server), server) == GOOD
    server = serve(in_turn((503, {}), (200, GOOD)))
    with pytest.raises(EngineFailure, match="answered 503"):
        post(client(server), server)
    assert len(server.posts()) == 1


@pytest.mark.parametrize("when", [lambda: "1", lambda: formatdate(time.time() + 2, usegmt=True)])
def test_retry_after_is_waited_for_by_all(serve, client, when):
    server = serve(in_turn(lambda call: (429, {}, {"Retry-After": when()}), (200, GOOD)))
    begin = time.monotonic()
    answers = client(server, concurrency=1).post_all([(server.url, {"i": i}) for i in range(3)])
    assert answers == [GOOD] * 3
    assert time.monotonic() - begin >= 0.9


def test_a_retry_after_of_hours_is_not_waited_for(serve, client):
    server = serve(in_turn((429, {}, {"Retry-After": "7200"})))
    with pytest.raises(EngineFailure, match="7200 seconds"):
        post(client(server), server)
    assert len(server.posts()) == 1


def test_there_is_an_end_to_it(serve, client):
    server = serve(in_turn((429, {"error": {"message": "too many"}})))
    with pytest.raises(EngineFailure, match="answered 429: too many"):
        post(client(server, retries=2), server)
    assert len(server.posts()) == 3


def test_a_server_that_is_not_there_yet_is_tried_again(serve, client, monkeypatch):
    monkeypatch.setattr(transport, "FIRST_WAIT", 0.3)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    late = []
    threading.Timer(0.3, lambda: late.append(serve(in_turn((200, GOOD)), port=port))).start()
    url = f"http://127.0.0.1:{port}/v1"
    assert client(urls=[url], retries=6).post_all([(url, {})]) == [GOOD]
    assert len(late[0].posts()) == 1


def test_nobody_there(client):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}/v1"
        with pytest.raises(EngineFailure, match="cannot connect to http://127"):
            client(urls=[url]).post_all([(url, {})])


@pytest.mark.parametrize("status", [201, 204, 400, 404, 408, 409, 425, 500, 502, 504, 529])
def test_no_other_status_is_sent_again(serve, client, status):
    server = serve(in_turn((status, {"error": {"message": "no such luck"}}), (200, GOOD)))
    with pytest.raises(EngineFailure, match=f"answered {status}"):
        post(client(server), server)
    assert len(server.posts()) == 1


def hang(call):
    time.sleep(2)


def drip(call):
    call.handler.send_response(200)
    call.handler.send_header("Content-Length", "1000")
    call.handler.end_headers()
    for _ in range(20):
        call.handler.wfile.write(b" ")
        time.sleep(0.1)


def drip_headers(call):
    call.handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(20):
        call.handler.wfile.write(b"x")
        time.sleep(0.1)


@pytest.mark.parametrize("slow", [hang, drip, drip_headers])
def test_the_time_limit_is_for_the_whole_request(serve, client, slow):
    server = serve(in_turn(slow, (200, GOOD)))
    begin = time.monotonic()
    with pytest.raises(EngineFailure, match=r"did not answer within 0\.5 seconds"):
        post(client(server, timeout=0.5), server)
    assert time.monotonic() - begin < 1.5
    assert len(server.posts()) == 1


def break_off(call):
    return None


def break_off_inside(call):
    call.handler.send_response(200)
    call.handler.send_header("Content-Length", "1000")
    call.handler.end_headers()
    call.handler.wfile.write(b'{"choices": [')


def no_http(call):
    call.handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


def endless_headers(call):
    call.handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for i in range(100_000):
        call.handler.wfile.write(b"X-%d: %s\r\n" % (i, b"y" * 1000))


@pytest.mark.parametrize("broken", [break_off, break_off_inside, no_http, endless_headers])
def test_a_connection_that_breaks_is_not_asked_again(serve, client, broken):
    server = serve(in_turn(broken, (200, GOOD)))
    with pytest.raises(EngineFailure, match="broke off"):
        post(client(server), server)
    assert len(server.posts()) == 1


# --- answers that are none ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>502</html>",
        b'{"choices": [{"text": "w1',
        b"[" * 200_000,
        b'{"n": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe\x00",
        b"[]",
        b'"text"',
        b"null",
        b"17",
    ],
)
def test_an_answer_that_is_no_object_is_a_bad_answer(serve, client, body):
    server = serve(in_turn((200, body), (200, GOOD)))
    with pytest.raises(BadAnswerError) as caught:
        post(client(server), server)
    assert len(str(caught.value)) < 1000
    assert len(server.posts()) == 1


def test_an_answer_without_end_is_cut_off(serve, client, monkeypatch):
    monkeypatch.setattr(transport, "LARGEST_ANSWER", 2**20)
    sent = []

    def flood(call):
        call.handler.send_response(200)
        call.handler.end_headers()
        while len(sent) < 2000:
            call.handler.wfile.write(b"x" * 2**16)
            sent.append(1)

    server = serve(flood)
    with pytest.raises(BadAnswerError, match="more than 1,048,576 bytes"):
        post(client(server), server)
    time.sleep(0.2)
    assert len(sent) * 2**16 < 2**25  # what fits in buffers on the way


def test_a_packed_answer_is_not_unpacked(serve, client):
    bomb = gzip.compress(b" " * 2**26)
    server = serve(in_turn((200, bomb, {"Content-Encoding": "gzip"})))
    with pytest.raises(BadAnswerError, match="packs its answer"):
        post(client(server), server)


# --- many at once ---------------------------------------------------------------------------------


def test_answers_come_in_order_and_no_more_are_in_flight_than_allowed(serve, client):
    def echo(call):
        time.sleep(0.02 * (call.body["i"] % 3))
        return 200, call.body

    server = serve(echo)
    jobs = [(server.url, {"i": i}) for i in range(30)]
    assert client(server, concurrency=4).post_all(jobs) == [{"i": i} for i in range(30)]
    assert 2 <= server.busiest <= 4


def test_the_first_failure_gives_the_others_up(serve, client):
    def answer(call):
        if call.body["i"] == 0:
            return 500, {}
        time.sleep(0.3)
        return 200, GOOD

    server = serve(answer)
    begin = time.monotonic()
    with pytest.raises(EngineFailure, match="answered 500"):
        client(server, concurrency=4).post_all([(server.url, {"i": i}) for i in range(200)])
    assert time.monotonic() - begin < 2
    assert len(server.posts()) < 10


def test_the_rate_is_kept(serve, client):
    server = serve(in_turn((200, GOOD)))
    begin = time.monotonic()
    client(server, rate=20).post_all([(server.url, {})] * 11)
    assert time.monotonic() - begin >= 0.49


def test_connections_are_used_again(serve, client):
    server = serve(lambda call: (200, {"port": call.handler.client_address[1]}))
    made = client(server, concurrency=1)
    ports = [made.post_all([(server.url, {})])[0]["port"] for _ in range(5)]
    assert len(set(ports)) == 1
