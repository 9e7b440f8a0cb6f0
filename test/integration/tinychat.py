#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The chat server of examples/tinychat: built by its own Makefile, driven by real clients."""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))
LIMIT_S = 20


class Client:
    def __init__(self, port, receive_bytes=None):
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(("127.0.0.1", port))
        self.lines = self.socket.makefile("r", encoding="utf-8", newline="\n")

    def say(self, line):
        self.socket.sendall(line.encode() + b"\n")

    def expect(self, *texts):
        """The next lines are these."""
        for text in texts:
            line = self.lines.readline()
            assert line == text + "\n", f"expected {text!r}, got {line!r}"

    def expect_end(self):
        rest = self.lines.read()
        assert rest == "", f"expected the end, got {rest!r}"


class Server:
    def __init__(self, program):
        # pylint: disable=consider-using-with  # it ends in end()
        self.process = subprocess.Popen([program, "0"], stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)$", self.process.stdout.readline()).group(1))

    def end(self, number):
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, f"exit status {self.process.returncode}: {said}"
        assert said.endswith("tinychat: everybody has left\n"), said


def hello(server, name, **options):
    client = Client(server.port, **options)
    client.expect(f"* hello, {name}: /name NAME, /join ROOM, /who, /quit", "* you are in #lobby")
    return client


def two_clients_talk(program):
    server = Server(program)
    ann = hello(server, "guest-1")
    bob = hello(server, "guest-2")
    ann.expect("* guest-2 joined #lobby")
    ann.say("/name ann")
    ann.expect("* you are in #lobby")
    bob.expect("* guest-1 has another name now", "* ann joined #lobby")
    bob.say("hello, ann\r")
    ann.expect("guest-2: hello, ann")
    ann.say("/who")
    ann.expect("* here: guest-2 ann")
    for i in range(1000):  # more than a box holds: back-pressure, and nothing lost
        bob.say(f"line {i}")
    for i in range(1000):
        ann.expect(f"guest-2: line {i}")
    bob.say("/join tea")
    bob.expect("* you are in #tea")
    ann.expect("* guest-2 went to another room")
    ann.say("is anybody here?")
    bob.say("nobody hears this")
    bob.say("/who")
    bob.expect("* here: guest-2")
    bob.say("/quit")
    bob.expect_end()
    server.end(signal.SIGTERM)
    ann.expect("* the server is going down")
    ann.expect_end()


def wrong_input_is_answered(program):
    server = Server(program)
    ann = hello(server, "guest-1")
    ann.say("/dance")
    ann.expect("* there is /name NAME, /join ROOM, /who and /quit")
    ann.say("/name Ann Smith")
    ann.expect("* that did not work: invalid argument")
    ann.say("x" * 1000)
    ann.expect("* a line has at most 199 bytes")
    server.end(signal.SIGINT)


def a_slow_client_is_cut_and_others_go_on(program):
    server = Server(program)
    ann = hello(server, "guest-1")
    bob = hello(server, "guest-2")
    ann.expect("* guest-2 joined #lobby")
    slow = hello(server, "guest-3", receive_bytes=2048)
    ann.expect("* guest-3 joined #lobby")
    bob.expect("* guest-3 joined #lobby")
    cut = False
    for i in range(20000):
        ann.say(f"{i} " + "x" * 150)
        line = bob.lines.readline()
        if line == "* guest-3 was too slow\n":
            cut = True
            line = bob.lines.readline()
        assert line.startswith(f"guest-1: {i} "), line
        if cut:
            break
    assert cut, "a client that reads nothing was never cut"
    ann.expect("* guest-3 was too slow")
    ann.say("still here")
    bob.expect("guest-1: still here")
    slow.lines.read()  # what was on the way, and then the end
    server.end(signal.SIGTERM)


def dies_while_clients_come_and_go(program):
    server = Server(program)
    clients = []
    for i in range(100):
        clients.append(Client(server.port))
        clients[-1].say("hi")
        if i % 3 == 0:
            clients.pop(0).socket.close()
    server.end(signal.SIGTERM)


def main():
    for tool in ("make", "cc", "pkg-config"):
        if not shutil.which(tool):
            print(f"{tool} is not installed")
            return 77
    if not os.path.exists(os.path.join(BUILD, "troupe.pc")):
        print(f"there is no {BUILD}/troupe.pc: run make release")
        return 77
    failed = 0
    cases = [two_clients_talk, wrong_input_is_answered, a_slow_client_is_cut_and_others_go_on,
             dies_while_clients_come_and_go]
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "tinychat")
        subprocess.run(["make", "-C", os.path.join(ROOT, "examples/tinychat"), "--no-print-directory",
                        f"PKG_CONFIG_PATH={BUILD}", f"OUT={program}",
                        "CFLAGS=-O2 -g -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"], check=True)
        for case in cases:
            try:
                case(program)
                print(f"ok - tinychat: {case.__name__}")
            except (AssertionError, OSError, subprocess.TimeoutExpired) as why:
                failed += 1
                print(f"not ok - tinychat: {case.__name__}: {why}")
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
