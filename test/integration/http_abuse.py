#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The shipped server under abuse: smuggling, slow clients, bombs. It refuses, stays up, and its memory stays flat."""
import http.client
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))
TROUPE = os.path.join(BUILD, "troupe")
LIMIT_S = 30

GET = b"GET /xrpc/_health HTTP/1.1\r\nHost: test\r\n"
POST = b"POST /xrpc/_health HTTP/1.1\r\nHost: test\r\n"
SECOND = b"GET /xrpc/_health HTTP/1.1\r\nHost: test\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
END = b"0\r\n\r\n"

# The eighteen of the survey: what some server was found to read differently from another.
PROBES = {
    "length and chunked": POST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n" + END,
    "chunked and length": POST + CHUNKED + b"Content-Length: 4\r\n\r\n" + END,
    "two lengths": POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    "bare CR hides chunked": POST + b"X-Abc:\rxTransfer-Encoding: chunked\r\n\r\n" + END,
    "xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + END,
    "space before colon": POST + b"Content-Length : 4\r\n\r\nabcd",
    "plus in length": POST + b"Content-Length: +4\r\n\r\nabcd",
    "NUL in value": POST + b"X: a\0b\r\n\r\n",
    "bare LF": b"GET /xrpc/_health HTTP/1.1\nHost: test\n\n",
    "no version": b"GET /xrpc/_health\r\nHost: test\r\n\r\n",
    "version 0.9": b"GET /xrpc/_health HTTP/0.9\r\nHost: test\r\n\r\n",
    "version 2.0": b"GET /xrpc/_health HTTP/2.0\r\nHost: test\r\n\r\n",
    "no host": b"GET /xrpc/_health HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: other\r\n\r\n",
    "chunked in 1.0": b"POST /xrpc/_health HTTP/1.0\r\nHost: test\r\n" + CHUNKED + b"\r\n" + END,
    "folded line": POST + b"X: a\r\n b\r\n\r\n",
    "64 KB header": GET + b"X: " + b"a" * 65536 + b"\r\n\r\n",
    "empty name": GET + b": a\r\n\r\n",
}


def permutations():
    """Two framings that contradict each other, in every order, with every way to hide one."""
    lengths = [b"Content-Length: 4", b"Content-length:4", b"CONTENT-LENGTH: 0", b"Content-Length: 04"]
    codings = [b"Transfer-Encoding: chunked", b"transfer-encoding:CHUNKED", b"Transfer-Encoding: identity",
               b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, identity",
               b"Transfer-Encoding: \x0bchunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding:\r\n chunked",
               b"X: y\nTransfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked", b"Transfer-Encoding: chunkedx"]
    for length, coding in itertools.product(lengths, codings):
        for pair in ((length, coding), (coding, length)):
            yield b" / ".join(pair).decode("latin-1"), POST + b"\r\n".join(pair) + b"\r\n\r\n" + END


class Server:
    def __init__(self, folder):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TROUPE_")}
        with open(os.path.join(folder, "log"), "ab") as log:
            # pylint: disable=consider-using-with  # it ends in end()
            self.process = subprocess.Popen(
                [TROUPE, "serve", "--dev", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data",
                 os.path.join(folder, "data")],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True, env=kept)
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        found = re.search(r"public +http://([\d.]+):(\d+)", said)
        assert found, f"it did not start: {said}"
        self.address = (found.group(1), int(found.group(2)))

    def connect(self):
        client = socket.create_connection(self.address, timeout=LIMIT_S)
        return client

    def is_well(self):
        connection = http.client.HTTPConnection(*self.address, timeout=LIMIT_S)
        connection.request("GET", "/xrpc/_health")
        status = connection.getresponse().status
        connection.close()
        return status == 200

    def rss_kb(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LIMIT_S) == 0, self.process.returncode


def exchange(server, request):
    """Everything that comes back until the server closes."""
    client = server.connect()
    answer = b""
    try:
        client.sendall(request)
        while True:
            piece = client.recv(65536)
            if not piece:
                break
            answer += piece
    except (ConnectionResetError, BrokenPipeError):
        pass
    finally:
        client.close()
    return answer


def test_smuggling(server):
    tried = 0
    for name, request in itertools.chain(PROBES.items(), permutations()):
        answer = exchange(server, request + SECOND)
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
        assert len(statuses) == 1, f"{name}: {len(statuses)} answers: {answer!r}"
        assert statuses[0][0:1] in (b"4", b"5"), f"{name}: {statuses}"
        assert b"\r\nConnection: close\r\n" in answer, f"{name}: {answer!r}"
        tried += 1
    assert tried >= 18 + 80, tried


def test_header_bombs(server):
    exchange(server, GET + b"X: " + b"a" * 65536)
    before = server.rss_kb()
    for round_number in range(400):
        if round_number % 2:
            answer = exchange(server, GET + b"X: " + b"a" * 65536)
        else:
            answer = exchange(server, GET + b"".join(b"X-%d: y\r\n" % i for i in range(3000)) + b"\r\n")
        assert not answer or answer.startswith(b"HTTP/1.1 431"), answer
    assert server.rss_kb() < before + 8192, f"{before} KB, then {server.rss_kb()} KB"
    assert server.is_well()


def test_huge_bodies(server):
    before = server.rss_kb()
    for _ in range(50):
        answer = exchange(server, POST + b"Content-Length: 1000000000000\r\n\r\n" + b"a" * 100000)
        assert not answer or re.match(rb"HTTP/1\.1 4\d\d", answer), answer
    assert server.rss_kb() < before + 8192
    assert server.is_well()


def test_slow_readers(server):
    """They ask and ask and never read: the server must stop reading them, and serve others."""
    clients = []
    before = server.rss_kb()
    for _ in range(50):
        client = server.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        try:
            for _ in range(3000):
                client.send(SECOND * 20)
        except BlockingIOError:
            pass
        clients.append(client)
    assert server.is_well()
    grown = server.rss_kb() - before
    assert grown < 50 * 2048, f"{grown} KB for 50 clients"
    for client in clients:
        client.close()
    assert server.is_well()


def test_slowloris(server):
    if not shutil.which("slowhttptest"):
        return "slowhttptest is not installed"
    for mode in ("-H", "-B", "-X"):
        tool = subprocess.Popen(["slowhttptest", mode, "-c", "200", "-r", "200", "-i", "1", "-l", "4", "-p", "3",
                                 "-u", f"http://{self_url(server)}/xrpc/_health"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while tool.poll() is None:
                assert server.is_well(), mode
                threading.Event().wait(0.1)
        finally:
            if tool.poll() is None:
                tool.kill()
            tool.wait()
    return None


def self_url(server):
    return f"{server.address[0]}:{server.address[1]}"


def main():
    if not os.path.exists(TROUPE):
        print("there is no troupe in " + BUILD)
        return 77
    passed = failed = skipped = 0
    for name, test in sorted(globals().items()):
        if not name.startswith("test_"):
            continue
        label = name[5:].replace("_", " ")
        with tempfile.TemporaryDirectory() as folder:
            server = Server(folder)
            try:
                reason = test(server)
                server.end()
                if reason:
                    print(f"ok - {label} # SKIP {reason}")
                    skipped += 1
                else:
                    print(f"ok - {label}")
                    passed += 1
            except (AssertionError, OSError) as error:
                print(f"not ok - {label}\n# {error}")
                failed += 1
            finally:
                if server.process.poll() is None:
                    server.process.kill()
                server.process.wait()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
