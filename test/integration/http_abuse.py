#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The shipped server under abuse: smuggling, slow clients, bombs. It refuses, stays up, and its memory stays flat."""
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

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
# What a parser refuses with. 405, 401 or 200 would mean that it took the request and a route answered.
REFUSED = (b"400", b"431", b"501", b"505")
CREATE = b"/xrpc/blue.catbird.mls.createConvo"  # takes a body, and wants a token only then: 401
SUITE = "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"


def chunk_probes(body):
    """Bodies in chunks that are `body` to whoever reads them less strictly. The first size wraps around."""
    size, rest = b"%x" % len(body), b"\r\n" + body + b"\r\n" + END
    return {
        "size wraps": b"%x" % ((1 << 64) + len(body)) + rest,
        "size of 17 digits": b"f" * 17 + rest,
        "minus": b"-" + size + rest,
        "plus": b"+" + size + rest,
        "0x": b"0x" + size + rest,
        "space before the size": b" " + size + rest,
        "space after the size": size + b" " + rest,
        "tab after the size": size + b"\t" + rest,
        "underscore": size[:1] + b"_" + size[1:] + rest,
        "no size": rest,
        "no number": b"zz" + rest,
        "bare LF after the size": size + b"\n" + body + b"\r\n" + END,
        "bare CR after the size": size + b"\r" + body + b"\r\n" + END,
        "extension": size + b";a=b" + rest,
        "bare LF in an extension": size + b";a\nb" + rest,
        "bare CR in an extension": size + b";a\rb" + rest,
        "NUL in an extension": size + b";a\0b" + rest,
        "bare LF after the data": size + b"\r\n" + body + b"\n" + END,
        "nothing after the data": size + b"\r\n" + body + END,
        "two other bytes after the data": size + b"\r\n" + body + b"xx" + END,
        "more data than the size": b"%x" % (len(body) - 1) + rest,
        "bare LF at the end": size + b"\r\n" + body + b"\r\n0\n\n",
        "length in a trailer": size + b"\r\n" + body + b"\r\n0\r\nContent-Length: 7\r\n\r\n",
        "coding in a trailer": size + b"\r\n" + body + b"\r\n0\r\n" + CHUNKED + b"\r\n",
        "folded trailer": size + b"\r\n" + body + b"\r\n0\r\nA: b\r\n c\r\n\r\n",
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
    def __init__(self, folder, settings=()):
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TROUPE_")}
        with open(os.path.join(folder, "log"), "ab") as log:
            # pylint: disable=consider-using-with  # it ends in end()
            self.process = subprocess.Popen(
                [TROUPE, "serve", "--dev", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data",
                 os.path.join(folder, "data"), *(word for setting in settings for word in ("--set", setting))],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True, env=kept)
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        found = re.search(r"public +http://([\d.]+):(\d+)", said)
        assert found, f"it did not start: {said}"
        self.address = (found.group(1), int(found.group(2)))
        self.admin = re.search(r"admin +http://(\S+)", said).group(1)

    def connect(self):
        client = socket.create_connection(self.address, timeout=LIMIT_S)
        return client

    def is_well(self):
        connection = http.client.HTTPConnection(*self.address, timeout=LIMIT_S)
        connection.request("GET", "/xrpc/_health")
        status = connection.getresponse().status
        connection.close()
        return status == 200

    def connections(self):
        """How many the server has open on its public listener."""
        connection = http.client.HTTPConnection(self.admin, timeout=LIMIT_S)
        connection.request("GET", "/metrics")
        found = re.search(rb'^troupe_http_connections{server="public"} (\d+)$', connection.getresponse().read(), re.MULTILINE)
        connection.close()
        return int(found.group(1))

    def tokens(self, lxm, count):
        return subprocess.run([TROUPE, "dev-token", "--key", os.path.join(self.folder, "key"), "--lxm", lxm, "--count",
                               str(count)], capture_output=True, check=True, timeout=LIMIT_S).stdout.split()

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


def check_refused(server, name, request):
    """By the parser, with one answer, and what follows is not looked at."""
    answer = exchange(server, request + SECOND)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
    assert len(statuses) == 1, f"{name}: {len(statuses)} answers: {answer!r}"
    assert statuses[0] in REFUSED, f"{name}: {statuses}: a route has answered"
    assert b"\r\nConnection: close\r\n" in answer, f"{name}: {answer!r}"


def test_smuggling(server):
    """To a route that takes no body, and to one that does: whoever took it as chunked would get 405 and 401."""
    tried = 0
    for name, request in itertools.chain(PROBES.items(), permutations()):
        check_refused(server, name, request)
        check_refused(server, name + ", with a body", request.replace(b"/xrpc/_health", CREATE, 1))
        tried += 1
    assert tried >= 18 + 80, tried
    # The same without the defect gets as far as a route: what was refused above was refused for its defect.
    for framing, body in ((b"Content-Length: 4\r\n", b"abcd"), (CHUNKED, b"4\r\nabcd\r\n" + END)):
        for path, status in ((b"/xrpc/_health", b"405"), (CREATE, b"401")):
            answer = exchange(server, POST.replace(b"/xrpc/_health", path) + b"Connection: close\r\n" + framing + b"\r\n" +
                              body)
            assert answer.startswith(b"HTTP/1.1 " + status), (framing, path, answer)


def test_chunks(server):
    """The body would be a conversation, if anybody took it for one. Its good twin is."""
    names = ["good twin", *chunk_probes(b"body")]
    tokens = server.tokens("blue.catbird.mls.createConvo", len(names))
    for number, name in enumerate(names):
        body = json.dumps({"groupId": f"probe-{number}", "cipherSuite": SUITE}).encode()
        head = (POST.replace(b"/xrpc/_health", CREATE) + b"Authorization: Bearer " + tokens[number] +
                b"\r\nContent-Type: application/json\r\n" + CHUNKED)
        if number == 0:
            answer = exchange(server, head + b"Connection: close\r\n\r\n" + b"%x\r\n" % len(body) + body + b"\r\n" + END)
            assert answer.startswith(b"HTTP/1.1 200"), answer
        else:
            check_refused(server, name, head + b"\r\n" + chunk_probes(body)[name])
    for number in range(len(names)):
        token, = server.tokens("blue.catbird.mls.getConvo", 1)
        answer = exchange(server, b"GET /xrpc/blue.catbird.mls.getConvo?convoId=probe-%d HTTP/1.1\r\nHost: test\r\n"
                          b"Connection: close\r\nAuthorization: Bearer %s\r\n\r\n" % (number, token))
        assert answer.startswith(b"HTTP/1.1 200") == (number == 0), f"{names[number]} is stored: {answer!r}"


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


def drip(server, request):
    """A byte now and then, for as long as the server takes them. What it says at the end."""
    client = server.connect()
    client.settimeout(0.1)
    deadline = time.monotonic() + LIMIT_S
    said = b""
    for byte in itertools.chain(request, itertools.repeat(ord("a"))):
        assert time.monotonic() < deadline, "it is still being listened to"
        try:
            client.send(bytes([byte]))
            piece = client.recv(4096)
            if not piece:
                break
            said += piece
        except TimeoutError:
            pass
        except (ConnectionResetError, BrokenPipeError):
            break
    client.close()
    return said


def test_dripping(server):
    """A header byte by byte is never idle: its deadline counts from the first byte. A body has its rate."""
    said = drip(server, b"GET /xrpc/_health HTTP/1.1\r\nHost: test\r\nX: ")
    assert not said or said.startswith(b"HTTP/1.1 408"), said
    head = b"POST /v1/auth/google HTTP/1.1\r\nHost: test\r\nContent-Length: 4096\r\n\r\n"
    client = server.connect()
    client.sendall(head)
    client.settimeout(0.1)
    deadline = time.monotonic() + LIMIT_S
    while True:
        assert time.monotonic() < deadline, "it is still being listened to"
        try:
            client.send(b"a")
            said = client.recv(4096)
            break
        except TimeoutError:
            pass
    client.close()
    assert said.startswith(b"HTTP/1.1 408"), said
    # And one that says nothing any more is let go.
    client = server.connect()
    client.sendall(SECOND)
    client.settimeout(LIMIT_S)
    said = b""
    while piece := client.recv(4096):
        said += piece
    client.close()
    assert said.startswith(b"HTTP/1.1 200"), said
    assert server.connections() == 0


def test_slowloris(server):
    """More slow clients than connections: whoever comes then gets in only because deadlines throw them out."""
    if not shutil.which("slowhttptest"):
        return "slowhttptest is not installed"
    server.is_well()
    before = server.rss_kb()
    for mode, path in (("-H", "/xrpc/_health"), ("-B", "/v1/auth/google"), ("-X", "/xrpc/_health")):
        check_slow(server, mode, path)
    assert server.rss_kb() < before + 16384, f"{before} KB, then {server.rss_kb()} KB"
    return None


def check_slow(server, mode, path):
    with tempfile.TemporaryFile() as said:
        tool = subprocess.Popen(["slowhttptest", mode, "-c", "200", "-r", "200", "-i", "1", "-l", "15", "-p", "3",
                                 "-u", f"http://{self_url(server)}{path}"], stdout=said, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: server.connections() >= 100 or tool.poll() is not None, f"{mode}: they are there")
            assert tool.poll() is None, f"{mode}: it ended before it began"
            # They send on, and are gone all the same.
            wait_until(lambda: server.connections() <= 5, f"{mode}: they are thrown out")
            wait_until(lambda: is_let_in(server), f"{mode}: others are served")
            if mode == "-X":  # it holds on to answers that it has got; nobody minds
                assert tool.poll() is None, f"{mode}: they went by themselves"
                tool.terminate()
            status = tool.wait(LIMIT_S)
        finally:
            if tool.poll() is None:
                tool.kill()
            tool.wait()
        said.seek(0)
        words = said.read()
    if mode != "-X":
        assert status == 0, f"{mode}: exit status {status}: {words[-600:]!r}"
        assert b"No open connections left" in words, f"{mode}: {words[-600:]!r}"


def wait_until(is_so, what):
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not so: {what}"
        threading.Event().wait(0.05)


def is_let_in(server):
    try:
        return server.is_well()
    except (OSError, http.client.HTTPException):
        return False


# A provider whose keys are never fetched: its route takes a body from anybody.
PROVIDER = "auth.providers=google+https://accounts.example+https://accounts.example/keys+client"
SHORT = ("http.header_timeout=1s", "http.idle_timeout=1s", "http.connections_max=150", PROVIDER)
SETTINGS = {"test_slowloris": SHORT, "test_dripping": SHORT}


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
            server = Server(folder, SETTINGS.get(name, ()))
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
