#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The bad tokens of test/unit/auth/test_bad_tokens.c, made for this very second and sent to `troupe serve --dev`: each is
refused with its own label, and its good twin is let in. Their judge is the server's own, with what it expects."""
import base64
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import serving

MAKER = os.path.join(serving.ROOT, os.environ.get("TROUPE_TESTS", "build/debug/test"), "test_auth_bad_tokens")
PATH = f"/xrpc/{serving.PREFIX}getConvo?convoId=none"
# What a server says of those of which it does not say the label in the table. None: HTTP says 400 and asks nobody. Empty:
# it is let in.
HERE = {
    "zero byte after": None,
    "zero byte inside": None,
    "newline after": "",  # ends the header: it is the good one
    "space after": "",  # likewise: spaces at the end of a header do not belong to it
    "nothing": "TokenForm",  # likewise
    "aud the bare DID": "",  # taken with the service's fragment and without
    "alg RS256 with a key of ES256K": "AlgorithmRefused",  # no service token has it
}
# Good or bad by a second: judged only if no other second has begun meanwhile.
EXACT = {"exp now", "exp over the cap, issued ahead", "iat in the future"}
TRIES = 40


def make(folder, second):
    """(name, label, token, twin) of each."""
    path = os.path.join(folder, "tokens")
    subprocess.run([MAKER, "are_written_for_a_server_too"], check=True, capture_output=True, timeout=serving.LIMIT_S,
                   env={**os.environ, "TROUPE_BAD_TOKENS": path, "TROUPE_BAD_TOKENS_NOW": str(second)})
    with open(path, encoding="ascii") as file:
        for line in file:
            name, label, token, twin = line.rstrip("\n").split("\t")
            yield name, label, decode(token), decode(twin)


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Client:
    """Requests on a connection that is made again when the server has closed it. http.client would not send such headers."""

    def __init__(self, server):
        self.server = server
        self.socket = None

    def ask(self, token):
        """Status and label."""
        request = b"GET " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
        if self.socket is None:
            self.socket = socket.create_connection(self.server.address, timeout=serving.LIMIT_S)
        self.socket.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer or len(answer.split(b"\r\n\r\n", 1)[1]) < self.size(answer):
            piece = self.socket.recv(65536)
            assert piece, f"closed after {answer!r}"
            answer += piece
        head, body = answer.split(b"\r\n\r\n", 1)
        if b"connection: close" in head.lower():
            self.socket.close()
            self.socket = None
        label = re.search(rb'"error":"(\w+)"', body)
        return int(head.split(b" ")[1]), label.group(1).decode() if label else ""

    @staticmethod
    def size(answer):
        return int(re.search(rb"(?i)\r\ncontent-length: (\d+)", answer).group(1))


def verdict(name, label, status, told):
    """What is wrong with this answer, or None."""
    label = HERE.get(name, label)
    if label is None:
        right = status == 400
    elif label == "":
        right = status == 404
    else:
        right = status == 401 and label in ("-", told)
    return None if right else f"{name}: {status} {told}, not {label or 'let in'}"


def bad_tokens_are_refused_and_their_twins_let_in(folder):
    if not os.access(MAKER, os.X_OK):
        return f"there is no {MAKER}, which makes the tokens: run make"
    server = serving.Server(folder, "--dev", "--set", "auth.service_fragment=svc", *serving.FAST)
    client = Client(server)
    # Whoever is let in gets as far as the conversation that is not there.
    wrong, refused, exact = [], 0, set()
    for name, label, token, twin in make(folder, int(time.time())):
        if name in EXACT:
            continue
        wrong.append(verdict(name, label, *client.ask(token)))
        refused += 1
        wrong.append(verdict(f"twin of {name}", "", *client.ask(twin)))
    for _ in range(TRIES):
        if exact == EXACT:
            break
        second = int(time.time())
        for name, label, token, twin in make(folder, second):
            if name not in EXACT - exact:
                continue
            found = [verdict(name, label, *client.ask(token)), verdict(f"twin of {name}", "", *client.ask(twin))]
            if int(time.time()) == second:
                wrong += found
                exact.add(name)
    assert exact == EXACT, f"not judged within their second: {EXACT - exact}"
    wrong = [text for text in wrong if text]
    assert not wrong, "; ".join(wrong)
    assert refused + len(exact) >= 200, refused
    assert server.is_well()
    server.end()
    print(f"# {refused + len(exact)} bad tokens")
    return None


def refusals_say_what_to_do(folder):
    server = serving.Server(folder, "--dev")

    def ask(name, body, *headers, path=None):
        connection = http.client.HTTPConnection(server.public, timeout=serving.LIMIT_S)
        connection.putrequest("GET" if body is None else "POST", path or f"/xrpc/{serving.PREFIX}{name}")
        for header in headers if path else headers or ("Bearer " + serving.tokens(folder, name)[0],):
            connection.putheader("Authorization", header)
        connection.putheader("Content-Length", str(len(body or "")))
        connection.endheaders((body or "").encode())
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer["message"]

    for said, wanted in (
            (ask("getConvo", None, "Bearer "), "Authorization has no token; send Bearer, one space and the token."),
            (ask("getConvo", None, "Bearer a", "Bearer b"), "There are two Authorization headers; send one, with Bearer TOKEN."),
            (ask("createConvo", ""), "The body is empty; send a JSON object."),
            (ask("sendMessage", json.dumps({"convoId": "x", "ciphertext": "?", "msgId": "1", "epoch": 0, "paddedSize": 512})),
             "ciphertext must be base64 of at most "),
            (ask("", None, path="/v1/packs/none/manifest"), "There is no pack none; check the name.")):
        assert said.startswith(wanted), (said, wanted)
    server.end()


if __name__ == "__main__":
    sys.exit(serving.run_cases([bad_tokens_are_refused_and_their_twins_let_in, refusals_say_what_to_do]))
