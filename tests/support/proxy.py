"""Headless Chromium, and a proxy that shows a server under a path prefix, as JupyterLab's does."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.browser import CHROMIUM

BASE = "/user/me/proxy/8899"
LONG_MS = 90_000


class Proxy(ThreadingHTTPServer):
    """A proxy that shows a server under a path, as JupyterLab's does; `down` drops the network."""

    daemon_threads = True

    def __init__(self, port=0, target=0):
        super().__init__(("127.0.0.1", port), Forwarder)
        self.target = target
        self.down = False
        self.seen = []
        self.sockets = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}{BASE}/"

    def handle_error(self, *_):
        """Ignore browsers that leave."""

    def drop(self):
        self.down = True
        for one in list(self.sockets):
            with_error(one.shutdown, socket.SHUT_RDWR)

    def kill(self):
        self.drop()
        self.shutdown()
        self.server_close()


def with_error(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return


class Forwarder(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.seen.append(self.path)
        if self.server.down or not self.path.startswith(BASE):
            self.send_error(502)
            return
        self.server.sockets.add(self.connection)
        back = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=60)
        answer = None
        try:
            back.request("GET", self.path[len(BASE) :] or "/", headers=dict(self.headers))
            answer = back.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() != "transfer-encoding":
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            while data := answer.read1(65536):
                self.wfile.write(data)
                self.wfile.flush()
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            self.server.sockets.discard(self.connection)
            if answer is not None:
                answer.close()
            back.close()

    def log_message(self, *_):
        return


@contextmanager
def served(folder, port=0):
    """Run `sm-profiler serve` in a process of its own; yield its port."""
    command = [sys.executable, "-m", "sm_profiler", "serve", str(folder), "--port", str(port), "--base-url", BASE]
    environment = {**os.environ, "SM_PROFILER_SERVE_TOKEN": "known"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        line = process.stdout.readline().strip()
        assert line.endswith(f"{BASE}/?token=known")
        yield int(line.partition("127.0.0.1:")[2].partition("/")[0])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stdout.close()


@contextmanager
def chromium(**options):
    """Yield a page with its errors and the requests that leave it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(LONG_MS)
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(f"error {error}"))
        page.on("dialog", lambda dialog: (page.problems.append("dialog"), dialog.dismiss()))
        page.on("console", lambda message: note(page, message.text) if message.type == "error" else None)
        yield page
        browser.close()


def note(page, text):
    if "Failed to load resource" not in text and "ERR_" not in text:  # while the network is down
        page.problems.append(text)
