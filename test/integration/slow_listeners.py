#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Listeners of `troupe serve` that stop reading. One that reads again finds every event in order, then the notice with its
cursor, then the end, and goes on from there without a gap; one that never reads again is gone after half a minute, and keeps no
server that is told to end."""
import base64
import json
import os
import socket
import struct
import sys
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import serving
import talking

SIZE = 180000  # of a message
SAID_MAX = 200
FIRST = 2  # said before: the conversation and its members
UPGRADE = ("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
           "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")


def vector(part):
    size = len(part)
    head = bytes([size]) if size < 64 else struct.pack(">H", 0x4000 | size) if size < 1 << 14 else \
        struct.pack(">I", 0x80000000 | size)
    return head + part


def big_message(number):
    """As talking.private_message, with parts of any size."""
    parts = (b"", b"sender data of 28 bytes ....", f"{number} ".encode() + bytes(SIZE))
    return struct.pack(">HH", 1, 2) + vector(talking.CONVO.encode()) + struct.pack(">QB", 1, 1) + b"".join(map(vector, parts))


class Speaker:
    """Says what is larger than any buffer, and counts."""

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.seq = FIRST
        self.tokens = serving.tokens(folder, "sendMessage", SAID_MAX + 1)

    def say(self):
        body = {"convoId": talking.CONVO, "msgId": f"big-{self.seq}", "epoch": 1,
                "ciphertext": {"$bytes": base64.b64encode(big_message(self.seq)).decode()}}
        status, answer = serving.call(self.server, self.folder, "sendMessage", body, token=self.tokens.pop())
        assert status == 200, (status, answer)
        self.seq += 1
        assert answer["seq"] == self.seq, answer

    def say_too_much(self, listeners):
        while self.server.metric("troupe_http_slow_streams_total") < listeners:
            assert self.seq < SAID_MAX, f"{self.seq} messages are not too much"
            self.say()
        self.say()  # who does not read hinders nobody


def listen(server, folder, cursor, lines=""):
    """A subscription that is not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(serving.LIMIT_S)
    client.connect(server.address)
    query = urllib.parse.urlencode({"convoId": talking.CONVO, "cursor": cursor})
    token = serving.tokens(folder, "subscribeConvoEvents")[0]
    client.sendall((f"GET /xrpc/{serving.PREFIX}subscribeConvoEvents?{query} HTTP/1.1\r\nHost: x\r\n"
                    f"Authorization: Bearer {token}\r\n{lines}\r\n").encode())
    return client.makefile("rb"), client


def read_head(file, status):
    assert file.readline().split()[1] == status
    while file.readline() != b"\r\n":
        pass


def read_events(file):
    """Name and data of server-sent events, to the end of their body: one event is one chunk here, and a beat is one."""
    read_head(file, b"200")
    while size := int(file.readline(), 16):
        text = file.read(size).decode()
        assert file.read(2) == b"\r\n"
        fields = dict(line.split(": ", 1) for line in text.split("\n") if ": " in line)
        if fields:
            yield fields["event"], json.loads(fields["data"])
    assert file.read() == b"\r\n", "something comes behind the end"


def read_cbor(data):
    """The first value of DAG-CBOR, and what is behind it."""
    kind, size = data[0] >> 5, data[0] & 31
    data = data[1:]
    if kind == 7:
        return {20: False, 21: True, 22: None}[size], data
    if size >= 24:
        digits = 1 << (size - 24)
        size, data = int.from_bytes(data[:digits], "big"), data[digits:]
    if kind < 2:
        return (size, -1 - size)[kind], data
    if kind < 4:
        return (data[:size] if kind == 2 else data[:size].decode()), data[size:]
    found = {}
    assert kind == 5, kind
    for _ in range(size):
        key, data = read_cbor(data)
        found[key], data = read_cbor(data)
    return found, data


def read_frames(file):
    """First byte and payload of WebSocket's frames."""
    read_head(file, b"101")
    while head := file.read(2):
        size = head[1]
        if size > 125:
            size = int.from_bytes(file.read(2 if size == 126 else 8), "big")
        yield head[0], file.read(size)


def check_events(file, speaker):
    """All in order, then the notice: its cursor."""
    *events, (name, notice) = read_events(file)
    seqs = [data["seq"] for name, data in events if name == "messageEvent"]
    assert len(seqs) == len(events) and seqs == list(range(FIRST + 1, FIRST + 1 + len(seqs))), seqs
    assert name == "infoEvent" and notice["info"] == "ConsumerTooSlow", notice
    assert notice["cursor"] == str(seqs[-1]) and seqs[-1] < speaker.seq, (notice, seqs[-1], speaker.seq)
    return seqs[-1]


def check_frames(file, speaker):
    """The same over WebSocket, with the error frame and the close code."""
    *frames, (first, error), (last, close) = [frame for frame in read_frames(file) if frame[0] != 0x89]
    seqs = []
    for kind, payload in frames:
        head, rest = read_cbor(payload)
        assert kind == 0x82 and head == {"op": 1, "t": "#messageEvent"}, head
        seqs.append(read_cbor(rest)[0]["seq"])
    assert seqs == list(range(FIRST + 1, FIRST + 1 + len(seqs))), seqs
    head, rest = read_cbor(error)
    body = read_cbor(rest)[0]
    assert first == 0x82 and head == {"op": -1} and body["error"] == "ConsumerTooSlow", (head, body)
    assert body["cursor"] == str(seqs[-1]) and seqs[-1] < speaker.seq, (body, seqs[-1], speaker.seq)
    assert last == 0x88 and close[:2] == struct.pack(">H", 1013), (last, close)
    return seqs[-1]


def check_resumes(server, folder, cursor, speaker):
    file, client = listen(server, folder, cursor)
    for name, data in read_events(file):
        assert name == "messageEvent" and data["seq"] == cursor + 1, (name, data["seq"], cursor)
        cursor += 1
        if cursor == speaker.seq:
            break
    client.close()


def start(folder, *arguments):
    server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
    talking.Talk(folder).make(server)
    return server, Speaker(server, folder)


def who_reads_again_misses_nothing(folder, *arguments):
    server, speaker = start(folder, *arguments)
    events, _ = listen(server, folder, FIRST)
    frames, _ = listen(server, folder, FIRST, UPGRADE)
    speaker.say_too_much(2)
    check_resumes(server, folder, check_events(events, speaker), speaker)
    check_resumes(server, folder, check_frames(frames, speaker), speaker)
    server.end()


def who_never_reads_again_is_gone(folder):
    # What the kernel takes for them is little beside this rate: it buys them no time.
    server, speaker = start(folder, "--set", "http.body_rate_min=1GiB")
    listeners = [listen(server, folder, FIRST, lines) for lines in ("", UPGRADE)]
    speaker.say_too_much(2)
    serving.wait_until(lambda: 'troupe_http_connections{server="public"} 0\n' in server.ask("/metrics", admin=True)[2],
                       "nobody is connected", 2 * serving.LIMIT_S)
    assert server.metric("troupe_http_streams") == server.metric("troupe_delivery_subscribers") == 0
    for file, client in listeners:
        file.close()
        client.close()
    server.end()


def who_never_reads_again_keeps_no_server(folder):
    server, speaker = start(folder, "--set", "server.drain_timeout=5m")
    listeners = [listen(server, folder, FIRST, lines) for lines in ("", UPGRADE)]
    speaker.say_too_much(2)
    server.end()
    for file, client in listeners:
        file.close()
        client.close()


if __name__ == "__main__":
    sys.exit(serving.run_cases([*serving.on_both(who_reads_again_misses_nothing), who_never_reads_again_is_gone,
                                who_never_reads_again_keeps_no_server]))
