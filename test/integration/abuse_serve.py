#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Abuse of the shipped server that needs its real routes: JSON, compressed bodies, ranges, floods, streams that nobody
reads, forged addresses, and secrets that must not come out. It refuses, stays up, and its memory stays flat."""
import base64
import gzip
import http.client
import json
import os
import re
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import serving

# A provider whose keys are never fetched: what is sent here does not get that far.
PROVIDER = ["--set", "auth.providers=google+https://accounts.example+https://accounts.example/keys+client"]
SIGN_IN = "/v1/auth/google"


def post(server, path, body, headers=None, token=None):
    headers = {"Content-Type": "application/json", **(headers or {})}
    if token:
        headers["Authorization"] = "Bearer " + token
    return server.ask(path, "POST", headers=headers, body=body)


def is_flat(server, before_kb, most_kb):
    assert server.is_well()
    grown = server.memory_kb() - before_kb
    assert grown < most_kb, f"{grown} KB more"


def deep_and_huge_json(folder):
    server = serving.Server(folder, "--dev", *serving.FAST, *PROVIDER)
    deep = [b"[" * 16000, b'{"a":' * 3000, b"[" * 8000 + b"]" * 8000, b'{"idToken":' + b"[" * 5000 + b"]" * 5000 + b"}"]
    odd = [b"", b"nonsense", b"null", b"[]", b'"text"', b"\xff\xfe{}", b'{"idToken":"a","idToken":"b"}', b'{"idToken":7}',
           b'{"idToken":"\xed\xa0\x80"}', b'{"idToken":1e99999}', b"{" + b'"k":1,' * 2000 + b'"k":1}',
           b'{"idToken":"' + b"a" * 15000]
    for body in deep + odd:
        status, _, text = post(server, SIGN_IN, body)
        assert status == 400, (body[:40], status, text)
    before = server.memory_kb()
    for _ in range(100):
        for body in deep:
            assert post(server, SIGN_IN, body)[0] == 400
    is_flat(server, before, 8192)
    # Larger than the route takes: refused from its header, whatever follows.
    for size in (16385, 1 << 20, 1 << 40):
        with socket.create_connection(server.address, timeout=serving.LIMIT_S) as client:
            client.sendall(f"POST {SIGN_IN} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
            assert client.recv(4096).startswith(b"HTTP/1.1 413"), size
    # A route that takes megabytes, from a caller it knows.
    path = f"/xrpc/{serving.PREFIX}createConvo"
    for body in (b"[" * 4000000, b'{"a":' * 1000000, b'{"groupId":' + b"[" * 2000000 + b"]" * 2000000 + b"}"):
        status, _, text = post(server, path, body, token=serving.tokens(folder, "createConvo")[0])
        assert status == 400 and "not JSON" in text, (status, text)
    is_flat(server, before, 40000)
    server.end()


def compressed_bodies_are_not_unpacked(folder):
    server = serving.Server(folder, "--dev", *serving.FAST, *PROVIDER)
    bomb = gzip.compress(b'{"idToken":"' + b"a" * 12000000 + b'"}', 9)
    assert len(bomb) < 16384
    before = server.memory_kb()
    for coding in ("gzip", "GZIP", "deflate", "x-gzip", "gzip, gzip", "br"):
        for _ in range(10):
            status, _, text = post(server, SIGN_IN, bomb, {"Content-Encoding": coding})
            assert status in (400, 415), (coding, status, text)
    # The other place to announce it is refused before the body is looked at.
    with socket.create_connection(server.address, timeout=serving.LIMIT_S) as client:
        client.sendall(f"POST {SIGN_IN} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".encode())
        assert client.recv(4096).startswith((b"HTTP/1.1 400", b"HTTP/1.1 501"))
    is_flat(server, before, 4096)
    server.end()


def thousand_ranges(folder):
    server = serving.Server(folder, "--dev")
    before = server.memory_kb()
    many = "bytes=" + ",".join(f"{i}-{i}" for i in range(1000))
    for value in (many, "bytes=" + "0-," * 1000 + "0-", "bytes=-" + "9" * 4000, "bytes=18446744073709551615-0"):
        for path in ("/xrpc/_health", "/nowhere"):
            status, _, text = server.ask(path, headers={"Range": value})
            assert status in (200, 404, 416), (value[:40], status)
            assert len(text) < 1000, len(text)
    is_flat(server, before, 4096)
    server.end()


def flood_of_connections(folder):
    """Three times as many as it takes: those inside are served, the admin listener answers, and it recovers."""
    server = serving.Server(folder, "--dev", "--set", "http.connections_max=200")
    before = server.memory_kb()
    inside = http.client.HTTPConnection(server.public, timeout=serving.LIMIT_S)
    inside.request("GET", "/xrpc/_health")
    assert inside.getresponse().read()
    flood = []
    for number in range(600):
        client = socket.create_connection(server.address, timeout=serving.LIMIT_S)
        client.sendall(b"GET /xrpc/_health HTTP/1.1\r\n")  # never finished
        flood.append(client)
        if number % 50 == 0:
            assert server.ask("/readyz", admin=True)[0] == 200
    inside.request("GET", "/xrpc/_health")
    assert inside.getresponse().read()
    inside.close()
    is_open = served = 0
    for client in flood[250:]:
        client.settimeout(serving.LIMIT_S)
        try:
            answer = client.recv(4096)
        except ConnectionResetError:
            answer = b""
        is_open += answer not in (b"",) and not answer.startswith(b"HTTP/1.1 503")
        served += answer.startswith(b"HTTP/1.1 2")
    assert (is_open, served) == (0, 0), f"{is_open} above the limit are open, {served} served"
    assert server.ask("/livez", admin=True)[0] == 200
    for client in flood:
        client.close()

    def is_well():
        try:
            return server.is_well()
        except (OSError, http.client.HTTPException):
            return False

    serving.wait_until(is_well, "well again")
    is_flat(server, before, 16384)
    server.end()


def vector(content):
    """A variable-size vector of MLS."""
    size = len(content)
    if size < 64:
        return bytes([size]) + content
    if size < 16384:
        return (size | 0x4000).to_bytes(2, "big") + content
    return (size | 0x80000000).to_bytes(4, "big") + content


def application_message(group, epoch, size):
    """As much of an MLS PrivateMessage as a delivery service can see."""
    return (b"\0\1\0\2" + vector(group.encode()) + epoch.to_bytes(8, "big") + b"\1" + vector(b"") + vector(b"s" * 16) +
            vector(b"c" * size))


def streams_that_nobody_reads(folder):
    """Subscribers that take nothing while megabytes are said: each holds a bounded amount, then it is cut; who reads
    gets everything."""
    server = serving.Server(folder, "--dev", *serving.FAST)
    serving.create_convo(server, folder, "convo")
    assert serving.call(server, folder, "addMembers", {"convoId": "convo", "didList": ["did:example:bob"]})[0] == 200
    status, answer = serving.call(server, folder, "getSubscriptionTicket", {"convoId": "convo"})
    assert status == 200, answer
    request = (f"GET {answer['endpoint']}?convoId=convo&ticket={answer['ticket']} HTTP/1.1\r\nHost: x\r\n"
               "Accept: text/event-stream\r\n\r\n").encode()
    clients = []
    for _ in range(30):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(serving.LIMIT_S)
        client.connect(server.address)
        client.sendall(request)
        assert b" 200 OK" in client.recv(256)
        clients.append(client)
    before = server.memory_kb()
    messages, size = 150, 60000
    connection = http.client.HTTPConnection(server.public, timeout=serving.LIMIT_S)
    for number, token in enumerate(serving.tokens(folder, "sendMessage", messages)):
        body = application_message("convo", 1, size)
        status, answer = serving.call(server, folder, "sendMessage", {
            "convoId": "convo", "msgId": f"m{number}", "epoch": 1,
            "ciphertext": {"$bytes": base64.b64encode(body).decode()}}, token=token, connection=connection)
        assert status == 200, (number, status, answer)
    connection.close()
    said_kb = messages * size * 4 // 3 // 1024
    grown = server.memory_kb() - before
    # 30 unbounded ones would hold 30 times what was said; frames are shared, a stream holds at most 1 MiB.
    assert grown < 30 * 1024 + 2 * said_kb, f"{grown} KB for 30 streams and {said_kb} KB of events"
    assert server.is_well()
    cut = 0
    for client in clients:
        got = 0
        try:
            while piece := client.recv(1 << 20):
                got += len(piece)
                if got >= said_kb * 1024:
                    break
            else:
                cut += 1
        except (ConnectionResetError, TimeoutError):
            cut += 1
        client.close()
    assert cut == len(clients), f"{cut} of {len(clients)} were cut"
    status, answer = serving.call(server, folder, "getMessages", query="?convoId=convo&limit=100&type=app")
    assert status == 200 and len(answer["messages"]) == 100, status
    server.end()


def forged_addresses(folder):
    """A budget for each address, and no address is believed that a trusted proxy did not write."""
    few = ["--set", "auth.rate_per_address=1", "--set", "auth.burst_per_address=5"]

    def statuses(server, forwarded):
        found = []
        for value in forwarded:
            status, headers, _ = post(server, SIGN_IN, b"{}", {"X-Forwarded-For": value})
            assert status != 429 or int(headers["retry-after"]) >= 1, headers
            found.append(status)
        return found

    server = serving.Server(folder, "--dev", *PROVIDER, *few)
    found = statuses(server, [f"10.0.0.{i}" for i in range(20)])
    assert found.count(429) >= 10, found
    for name in ("Forwarded", "X-Real-IP", "X-Client-IP", "CF-Connecting-IP", "True-Client-IP"):
        assert post(server, SIGN_IN, b"{}", {name: "for=10.1.1.1"})[0] == 429, name
    server.end()
    server = serving.Server(folder, "--dev", *PROVIDER, *few, "--set", "server.trusted_proxies=127.0.0.0/8")
    found = statuses(server, [f"198.51.100.{i}" for i in range(20)])
    assert 429 not in found, found
    # What the client wrote itself stands left of what the proxy wrote.
    found = statuses(server, [f"10.0.0.{i}, 203.0.113.7" for i in range(20)])
    assert found.count(429) >= 10, found
    # A /64 of IPv6 is one.
    found = statuses(server, [f"2001:db8::{i:x}" for i in range(20)])
    assert found.count(429) >= 10, found
    found = statuses(server, [f"2001:db8:1:{i:x}::1" for i in range(10)])
    assert 429 not in found, found
    for odd in ("", ",", "unknown", "a" * 4000, "127.0.0.1", "1.2.3.4:99999", "::ffff:1.2.3.4", "1.2.3.4, "):
        assert statuses(server, [odd])[0] in (400, 429), odd
    assert server.is_well()
    server.end()


def secrets_stay_inside(folder):
    """Known secrets go in everywhere; none of them comes out in logs, metrics or status, at the loudest level."""
    admin, session = "admin-canary-" + "0123456789" * 3, "session-canary-" + "0123456789" * 3
    data = os.path.join(folder, "data")
    os.mkdir(data, 0o700)
    for name, text in (("admin.token", admin), ("session.secret", session)):
        descriptor = os.open(os.path.join(data, name), os.O_WRONLY | os.O_CREAT, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
    server = serving.Server(folder, "--dev", "--log-level", "debug", *serving.FAST, *PROVIDER)
    made = {name: serving.tokens(folder, name)[0] for name in ("createConvo", "getConvo", "addMembers")}
    secrets = [admin, session, "garbage-canary", "query-canary", "cookie-canary", "body-canary", *made.values()]
    assert post(server, f"/xrpc/{serving.PREFIX}createConvo", json.dumps({"groupId": "g", "cipherSuite": serving.SUITE}),
                token=made["createConvo"])[0] == 200
    # Used again, for something else, broken, in the wrong place.
    assert post(server, f"/xrpc/{serving.PREFIX}createConvo", b"{}", token=made["createConvo"])[0] in (400, 401)
    assert post(server, f"/xrpc/{serving.PREFIX}addMembers", b"{", token=made["getConvo"])[0] == 401
    assert post(server, f"/xrpc/{serving.PREFIX}addMembers", b'{"body-canary', token=made["addMembers"])[0] == 400
    assert server.ask(f"/xrpc/{serving.PREFIX}getConvo?convoId=g&ticket=query-canary", headers={
        "Authorization": "Bearer " + made["getConvo"], "Cookie": "cookie-canary"})[0] == 200
    assert server.ask(f"/xrpc/{serving.PREFIX}subscribeConvoEvents?convoId=g&ticket=query-canary")[0] == 401
    assert post(server, SIGN_IN, b'{"idToken":"body-canary.body-canary.body-canary"}')[0] in (400, 401)
    assert post(server, "/v1/auth/refresh", b'{"refreshToken":"body-canary"}')[0] in (400, 401)
    assert server.ask("/v1/users/me", headers={"Authorization": "Bearer garbage-canary"})[0] == 401
    bearer = {"Authorization": "Bearer " + admin}
    assert server.ask("/v1/log?level=debug", "POST", admin=True, headers=bearer)[0] == 200
    assert server.ask("/v1/drain", "POST", admin=True, headers={"Authorization": "Bearer garbage-canary"})[0] == 401
    outside = {path: server.ask(path, admin=True, headers=bearer)[2]
               for path in ("/metrics", "/readyz?verbose", "/livez?verbose", "/v1/status", "/v1/flags", "/v1/log")}
    server.end()
    outside["the log"] = server.log()
    outside["the output"] = server.said
    for arguments in (["config", "show", "--origin"], ["serve", "--data", data, "--listen", "127.0.0.1:0", "--admin",
                                                       "127.0.0.1:0"]):
        url = "postgresql://user:password-canary@127.0.0.1:1/none?connect_timeout=2"
        option = ["--set", "sql.url=" + url] if arguments[0] == "serve" else []
        done = subprocess.run([serving.TROUPE, *arguments, *option], capture_output=True, text=True, check=False,
                              timeout=serving.LIMIT_S, env=serving.environment(TROUPE_SQL_URL=url))
        outside[" ".join(arguments[:2])] = done.stdout + done.stderr
    assert len(outside["the log"]) > 2000, "the log says too little to prove anything"
    found = [(secret[:20], place) for secret in [*secrets, "password-canary"] for place, text in outside.items()
             if secret in text or secret.rsplit(".", maxsplit=1)[-1] in text]
    assert not found, found


def ids_are_no_labels(folder):
    """The names of users, conversations and devices are in no metric, and their number makes no time series."""
    server = serving.Server(folder, "--dev", *serving.FAST, *PROVIDER)

    def round_of(number):
        """What one user does with one conversation, and what goes wrong; the names that came up."""
        key, convo = f"user-{number}", f"convo-canary-{number}"
        tokens = {name: serving.tokens(folder, name, key=key)[0]
                  for name in ("createConvo", "getConvo", "getMessages", "sendMessage", "registerDevice", "addMembers")}
        payload = tokens["getConvo"].split(".")[1]
        did = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["iss"]
        other = f"did:plc:{number:024d}"

        def write(name, body):
            return post(server, f"/xrpc/{serving.PREFIX}{name}", json.dumps(body), token=tokens[name])[0]
        assert write("createConvo", {"groupId": convo, "cipherSuite": serving.SUITE}) == 200
        assert server.ask(f"/xrpc/{serving.PREFIX}getConvo?convoId={convo}",
                          headers={"Authorization": "Bearer " + tokens["getConvo"]})[0] == 200
        assert server.ask(f"/xrpc/{serving.PREFIX}getMessages?convoId={convo}",
                          headers={"Authorization": "Bearer " + tokens["getMessages"]})[0] == 200
        assert write("addMembers", {"convoId": convo, "didList": [other]}) == 200
        assert write("sendMessage", {"convoId": convo}) == 400
        assert write("registerDevice", {"deviceId": f"device-canary-{number}"}) == 400
        assert server.ask(f"/path-canary-{number}")[0] == 404
        assert server.ask(f"/v1/packs/pack-canary-{number}/download")[0] in (401, 404)
        assert post(server, f"/v1/auth/provider-canary-{number}", b'{"idToken":"x"}')[0] == 404
        return {did, convo, other, f"user-{number}", "-canary-"}

    def metrics():
        text = server.ask("/metrics", admin=True)[2]
        return text, {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}
    names = round_of(0)
    series = metrics()[1]
    for number in range(1, 12):
        names |= round_of(number)
    text, now = metrics()
    server.end()
    found = [name for name in names if name in text]
    assert not found, found
    assert "did:" not in text, [line for line in text.splitlines() if "did:" in line][:3]
    # An actor's type has its first turn measured when it is sampled: not who it was.
    grown = {name for name in now - series if not re.match(r"troupe_actor_\w+{type=", name)}
    assert not grown, sorted(grown)[:5]
    assert len(series) > 500, "too few series to prove anything"


if __name__ == "__main__":
    sys.exit(serving.run_cases([deep_and_huge_json, compressed_bodies_are_not_unpacked, thousand_ranges,
                                flood_of_connections, streams_that_nobody_reads, forged_addresses,
                                secrets_stay_inside, ids_are_no_labels]))
