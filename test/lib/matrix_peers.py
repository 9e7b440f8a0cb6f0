# SPDX-License-Identifier: Apache-2.0
"""Matrix clients as processes: matrix-js-sdk by Node, matrix-nio by Python, and our own. test/README.md has their commands and
events. Not a test itself."""
import contextlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import threading
import time

import npm
from npm import Skip
from serving import LONG, ROOT

sys.path.insert(0, os.path.join(ROOT, "tools"))
import matrix_homeserver  # noqa: E402  # pylint: disable=wrong-import-position,import-error

SOURCE = os.path.join(ROOT, "test/matrix")
JS = os.path.join(ROOT, "build/matrix/js")
LIMIT_S = 120 if LONG else 60


def js_command():
    node = npm.install(JS, SOURCE, [os.path.join(SOURCE, "peer_js.mjs")])
    return [node, os.path.join(JS, "peer_js.mjs")]


def nio_command():
    for module, package in (("nio", "python3-matrix-nio"), ("olm", "python3-olm")):
        if not importlib.util.find_spec(module):
            raise Skip(f"{package} is not installed")
    return ["/usr/bin/python3", os.path.join(SOURCE, "peer_nio.py")]


def troupe_command():
    program = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/debug"), "test/matrix-peer")
    if not os.path.exists(program):
        raise Skip(f"{os.path.relpath(program, ROOT)} is not built")
    return [program]


COMMANDS = {"js": js_command, "nio": nio_command, "troupe": troupe_command}


@contextlib.contextmanager
def homeserver(folder, **settings):
    """A Homeserver that runs, or a Skip that says why there is none."""
    server = matrix_homeserver.Homeserver(folder, **settings)
    try:
        server.start()
    except matrix_homeserver.Unavailable as reason:
        raise Skip(str(reason)) from reason
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        yield server


class Peer:
    """A client of one kind, "js", "nio" or "troupe". What it logs is in a file of its name in the folder."""

    def __init__(self, kind, folder, name):
        self.kind, self.name = kind, name
        self.log_path = os.path.join(folder, f"{name}.log")
        self.numbers = itertools.count(1)
        self.arrived = threading.Condition()
        self.answers, self.events, self.is_over = {}, [], False
        with open(self.log_path, "ab") as log:
            # pylint: disable=consider-using-with  # it ends in stop()
            self.process = subprocess.Popen(COMMANDS[kind](), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log, text=True, bufsize=1)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.user_id = self.device_id = None

    def __enter__(self):
        self.wait("ready")
        return self

    def __exit__(self, *_):
        self.stop()

    def read(self):
        for line in self.process.stdout:
            said = json.loads(line)
            with self.arrived:
                if "id" in said:
                    self.answers[said["id"]] = said
                else:
                    self.events.append(said)
                self.arrived.notify_all()
        with self.arrived:
            self.is_over = True
            self.arrived.notify_all()

    def take(self, find, what, limit_s):
        """What `find` returns when it is not None, after the lines that it needs have arrived."""
        limit_s = limit_s or LIMIT_S
        deadline = time.monotonic() + limit_s
        with self.arrived:
            while (found := find()) is None:
                assert not self.is_over, f"{self.name} ended before {what}: {self.log_end()}"
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"{self.name}: no {what} after {limit_s} s; not taken: {self.events[-8:]} {self.log_end()}"
                self.arrived.wait(left_s)
            return found

    def begin(self, command, **values):
        """Sends a command and returns its number for end()."""
        number = next(self.numbers)
        try:
            self.process.stdin.write(json.dumps({"id": number, "do": command, **values}) + "\n")
        except OSError as error:
            raise AssertionError(f"{self.name} ended before {command}: {self.log_end()}") from error
        return number, command

    def end(self, begun, limit_s=None):
        number, command = begun
        answer = self.take(lambda: self.answers.pop(number, None), f"answer to {command}", limit_s)
        assert answer["ok"], f"{self.name}: {command}: {answer['error']}"
        return answer

    def call(self, command, **values):
        return self.end(self.begin(command, **values))

    def wait(self, event, limit_s=None, **wanted):
        """Takes the first event of that kind whose fields are as wanted. Others stay."""
        return self.wait_any((event,), limit_s, **wanted)

    def wait_any(self, events, limit_s=None, **wanted):
        """The same for several kinds of events."""
        def find():
            for number, said in enumerate(self.events):
                if said["event"] in events and all(said.get(name) == value for name, value in wanted.items()):
                    return self.events.pop(number)
            return None
        return self.take(find, f"{' or '.join(events)} {wanted}", limit_s)

    def drop(self, event):
        """Drops the events of this kind that have arrived."""
        with self.arrived:
            self.events = [said for said in self.events if said["event"] != event]

    def login(self, server, user, **more):
        answer = self.call("login", homeserver=server.url, user=user, password=matrix_homeserver.PASSWORD, **more)
        self.user_id, self.device_id = answer["userId"], answer["deviceId"]
        return answer

    def known_devices(self, user_id):
        return {device["deviceId"]: device for device in self.call("devices", userId=user_id)["devices"]}

    def has_verified(self, other):
        return self.known_devices(other.user_id)[other.device_id]["verified"]

    def log_end(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()[-500:]

    def stop(self):
        """It stays logged in: its device is not removed."""
        with contextlib.suppress(AssertionError):
            self.begin("stop")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        with contextlib.suppress(OSError):  # what a peer that died has not read
            self.process.stdin.close()
        self.process.stdout.close()
