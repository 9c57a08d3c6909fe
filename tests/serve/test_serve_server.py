"""Connections of clients that send half a request, nothing at all, or something malformed."""

import asyncio
import contextlib
import socket

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from sm_profiler.serve import server
from sm_profiler.serve.server import Guard, Listening

WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def application(scope, receive, send):
    body = b""
    while scope["method"] == "POST":
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message["more_body"]:
            break
    await PlainTextResponse("hello")(scope, receive, send)


def served(talk):
    """Have a coroutine talk to a server on a port; nothing may be logged as an error."""

    async def both():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        opened = socket.create_server(("127.0.0.1", 0))
        running = uvicorn.Server(server.config_of(Guard(application)))
        task = asyncio.create_task(running.serve(sockets=[opened]))
        while not running.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        try:
            await asyncio.wait_for(talk(opened.getsockname()[1]), 60)
        finally:
            running.should_exit = True
            await task
        assert not problems

    asyncio.run(both())


@contextlib.asynccontextmanager
async def clients(port, count):
    """Connections to the server, closed at the end."""
    made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        yield made
    finally:
        for _, writer in made:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def ended(reader):
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 20)


async def answer(port, request=WHOLE):
    async with clients(port, 1) as [(reader, writer)]:
        writer.write(request)
        found = await reader.readline()
    return found.split(b" ")[1] if found else b""


@pytest.mark.parametrize(
    "half", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"]
)
def test_half_requests_do_not_keep_others_out(half, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 6)

    async def talk(port):
        async with clients(port, 5) as early:
            for _, writer in early:
                writer.write(half)
            async with clients(port, 15) as late:
                for _, writer in late:
                    writer.write(half)
                for _ in range(3):
                    assert await answer(port) == b"200"
                await ended(early[0][0])

    served(talk)


@pytest.mark.parametrize("first", [b"", WHOLE])
def test_a_request_has_to_be_whole_in_time(first, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    monkeypatch.setattr(server, "QUIET_S", 100)

    async def talk(port):
        async with clients(port, 1) as [(reader, writer)]:
            writer.write(first)
            if first:
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            dripping = asyncio.create_task(drip(writer))
            await ended(reader)
            dripping.cancel()
        assert await answer(port) == b"200"

    async def drip(writer):
        writer.write(b"GET / HTTP/1.1\r\n")
        while True:
            writer.write(b"X: y\r\n")
            await asyncio.sleep(0.02)

    served(talk)


def test_a_request_that_takes_long_to_answer_is_not_cut(monkeypatch):
    monkeypatch.setattr(server, "REQUEST_S", 0.1)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        if scope["path"] == "/slow":
            begun.set()
            await go_on.wait()
        await PlainTextResponse("hello")(scope, receive, send)

    async def talk(port):
        long = asyncio.create_task(answer(port, WHOLE.replace(b"/ ", b"/slow ", 1)))
        await begun.wait()
        async with clients(port, 3) as held:
            for reader, _ in held:
                await ended(reader)
        go_on.set()
        assert await long == b"200"

    monkeypatch.setitem(globals(), "application", slow)
    served(talk)


@pytest.mark.parametrize(
    "line",
    [
        b"Host: [::1", b"Host: evil@127.0.0.1", b"Host: 127.0.0.1@evil", b"Host: 127.0.0.1:99999999", b"Host: a b",
        b"Host: [127.0.0.1", b"Host: localhost/x", b"Host: localhost\r\nOrigin: http://[bad", b"Host: ::1",
        b"Host: localhost\r\nOrigin: x", b"Host: localhost\r\nContent-Length: " + b"9" * 5000,
    ],
)  # fmt: skip
def test_malformed_headers_are_refused(line, capfd):
    async def talk(port):
        assert await answer(port, b"GET / HTTP/1.1\r\n" + line + b"\r\n\r\n") == b"400"
        assert await answer(port) == b"200"

    served(talk)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("host", ["[::1]", "[::1]:8899", "LOCALHOST:1", "127.0.0.1"])
def test_own_names_are_served(host):
    async def talk(port):
        lines = f"Host: {host}\r\nOrigin: http://{host}\r\n\r\n"
        assert await answer(port, b"GET / HTTP/1.1\r\n" + lines.encode()) == b"200"

    served(talk)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.0.0.1"])
def test_the_printed_address_can_be_opened_elsewhere(host):
    shown = "127.0.0.1" if host == "127.0.0.1" else socket.gethostname()
    with socket.socket() as unused:
        assert Listening(unused, host, 8000).url("/jobs", None) == f"http://{shown}:8000/jobs/"
