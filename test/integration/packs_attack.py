#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe packs get` against mirrors that mean harm: an old document does not bring a retired key back, an error that
never ends ends, and what is not what was asked for is not taken; and texts made to pass on one database alone."""
import hashlib
import http.server
import json
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import packing
import serving

HELLO = b"hello"
DIGEST = hashlib.sha256(HELLO).hexdigest()


class Mirror:
    """Answers every manifest with `document` and every download with `bytes_`, or with what `answer` does."""

    def __init__(self, document, bytes_=HELLO, answer=None):
        seen = self.seen = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # pylint: disable=invalid-name
                seen.append(str(self.headers))
                body = document if self.path.endswith("/manifest") else bytes_
                if answer is not None and body is bytes_:
                    answer(self)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format, *args):  # pylint: disable=redefined-builtin
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def end(self):
        self.server.shutdown()
        self.server.server_close()


class Reader:
    """Stands in for a server where packing.run asks for its folder."""

    def __init__(self, folder):
        self.folder = folder


def unsigned(version="1", sha256=DIGEST, size=len(HELLO)):
    return json.dumps({"version": version, "sha256": sha256, "size_bytes": size}).encode()


def get(folder, mirror, *more, check=0):
    done = packing.run(Reader(folder), "packs", "get", "core", "--server", mirror.url, "--out", folder, *more, check=check)
    mirror.end()
    return done


def an_old_document_does_not_bring_a_retired_key_back(folder, *arguments):
    server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
    client = os.path.join(folder, "client")
    os.mkdir(client)
    good, lost = os.path.join(folder, "good.key"), os.path.join(folder, "lost.key")
    with open(os.path.join(folder, "file"), "wb") as file:
        file.write(HELLO)

    def push(version, key, name="core"):
        packing.run(server, "packs", "push", file.name, "--name", name, "--version", version, "--key", key, "--data",
                    server.data)

    push("1", good)
    push("1", lost, name="other")  # makes the key
    packing.run(server, "packs", "rotate", "core", "--key", good, "--add", lost, "--data", server.data)
    push("2", lost)
    old = packing.download(server, "/v1/packs/core/manifest")[2]
    packing.run(server, "packs", "rotate", "core", "--key", good, "--retire", lost, "--data", server.data)
    push("3", good)
    packing.run(server, "packs", "get", "core", "--data", server.data, "--out", client, home=client)
    pins = os.path.join(client, ".config/troupe/pack-keys")
    with open(pins, encoding="ascii") as file:
        before = file.read()
    done = get(client, Mirror(old), check=1)
    assert "not trusted" in done.stderr, done.stderr
    with open(pins, encoding="ascii") as file:
        assert file.read() == before
    # Nor can it be added again.
    packing.run(server, "packs", "rotate", "core", "--key", good, "--add", lost, "--data", server.data, check=1)
    server.end()


def what_was_not_asked_for_is_not_taken(folder):
    get(folder, Mirror(unsigned()), "--unsigned")
    done = get(folder, Mirror(unsigned("7")), "--unsigned", "--version", "2", check=1)
    assert "version 7" in done.stderr and not os.path.exists(os.path.join(folder, "core-7")), done.stderr
    with open(os.path.join(folder, "core-8.part"), "wb") as file:
        file.write(b"he")
    mirror = Mirror(unsigned("8", sha256='x"\r\nX-Evil: 1\r\nY: "'))
    get(folder, mirror, "--unsigned", check=1)
    assert not [headers for headers in mirror.seen if "Evil" in headers]


def an_error_without_end_ends(folder):
    def answer(handler):
        handler.send_response(404)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"\x1b[2J" + b"x" * 65536)
        except OSError:
            pass

    done = get(folder, Mirror(unsigned(), answer=answer), "--unsigned", check=1)
    assert "404" in done.stderr and "\x1b" not in done.stderr


def a_pipe_in_the_way_is_not_waited_for(folder):
    os.mkfifo(os.path.join(folder, "core-1"))
    get(folder, Mirror(unsigned()), "--unsigned")
    with open(os.path.join(folder, "core-1"), "rb") as file:
        assert file.read() == HELLO


def a_text_that_only_one_database_takes_is_refused(folder, *arguments):
    server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
    admin = packing.Admin(server)
    for member in ("package_type", "language_code", "name", "description"):
        status, _, answer = admin.ask("POST", "packs", {"package_id": "core", member: "a\0b"})
        assert status == 400 and member in answer["message"], (status, answer)
    for body in ({"name": "a\0b"}, {"name": "a", "notes": "\0"}):
        status, _, answer = admin.ask("POST", "releases", body)
        assert status == 400 and "zero byte" in answer["message"], (status, answer)
    admin.close()
    server.end()


if __name__ == "__main__":
    sys.exit(serving.run_cases([
        *serving.on_both(an_old_document_does_not_bring_a_retired_key_back,
                         a_text_that_only_one_database_takes_is_refused),
        what_was_not_asked_for_is_not_taken, an_error_without_end_ends, a_pipe_in_the_way_is_not_waited_for]))
