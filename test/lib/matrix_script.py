# SPDX-License-Identifier: Apache-2.0
"""A Matrix homeserver that says what a test tells it to say, and `troupe sync` with it. It checks nothing. Not a test itself."""
import collections
import contextlib
import http.server
import json
import os
import re
import subprocess
import threading
import urllib.parse

import serving

ADA = "@ada:script"


def room_event(kind, content, sender="@bob:script", **more):
    return {"type": kind, "sender": sender, "content": content, "origin_server_ts": 1_700_000_000_000, **more}


class Home:
    """A homeserver. `answers` has what it says next in place of its own word: for a method and a part of a path, a list of
    (status, body) or (status, body, headers); the last one stays. `asked` has what it was asked: (method, path, body)."""

    def __init__(self):
        self.changed = threading.Condition()
        self.answers, self.asked = {}, []
        self.updates = []  # of /sync; the token is their count
        self.files = {}
        self.numbers = collections.Counter()
        self.is_ending = False
        home = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                home.answer(self, json.loads(body) if body[:1] == b"{" else body)

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_):  # pylint: disable=arguments-differ  # it says nothing
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # a client that goes away is no error
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.changed:
            self.is_ending = True
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def say(self, method, part, *answers):
        self.answers[(method, part)] = list(answers)

    def scripted(self, method, path):
        for (wanted, part), answers in self.answers.items():
            if wanted == method and part in path:
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return None

    def answer(self, handler, body):
        path, _, query = handler.path.partition("?")
        path = urllib.parse.unquote(path)
        with self.changed:
            self.asked.append((handler.command, path, body))
            found = self.scripted(handler.command, path)
        if found is None and "/media/download/" in path:
            found = self.media(handler, path)
        if found is None:
            found = self.own(handler.command, path, dict(urllib.parse.parse_qsl(query)), body)
        status, text, *more = found
        if callable(text):
            text(handler)
            return
        text = text if isinstance(text, bytes) else json.dumps(text).encode()
        handler.send_response(status)
        for name, value in (more[0] if more else {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def media(self, handler, path):
        """The rest of a file from the byte that the client asks for."""
        data = self.files.get(path.rsplit("/", 1)[1])
        if data is None:
            return 404, {"errcode": "M_NOT_FOUND", "error": "Not found"}
        start = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "bytes=0-")
        start = int(start.group(1))
        if start == 0:
            return 200, data
        if start >= len(data):
            return 416, {"errcode": "M_UNKNOWN", "error": "Range"}
        return 206, data[start:], {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}

    def own(self, method, path, query, body):
        """What a homeserver says that finds nothing wrong."""
        name = path.removeprefix("/_matrix/client/").removeprefix("v3/")
        simple = {"versions": {"versions": ["v1.11"]}, "logout": {}, "keys/query": {"device_keys": {}},
                  "keys/upload": {"one_time_key_counts": {"signed_curve25519": 50}}, "keys/claim": {"one_time_keys": {}}}
        if name in simple:
            return 200, simple[name]
        if name == "login":
            return 200, {"user_id": ADA, "access_token": "token", "device_id": body["device_id"]}
        if name.endswith("/filter"):
            return 200, {"filter_id": "1"}
        if name == "sync":
            return 200, self.sync(int(query.get("since", "s0")[1:]), int(query.get("timeout", 0)) / 1000)
        if name == "createRoom":
            room = f"!made{len(self.updates)}:script"
            self.add_room(room, encrypted=True)
            return 200, {"room_id": room}
        if name.endswith("/members"):
            return 200, {"chunk": [room_event("m.room.member", {"membership": "join"}, state_key=user) for user in (ADA,)]}
        if "/send/" in name:
            return 200, {"event_id": self.event_id()}
        if name.endswith("/invite") or name.startswith("sendToDevice/"):
            return 200, {}
        return 404, {"errcode": "M_UNRECOGNIZED", "error": "Unrecognized request"}

    def event_id(self):
        self.numbers["event"] += 1
        return f"$event{self.numbers['event']}"

    # ---- /sync

    def sync(self, since, timeout_s):
        with self.changed:
            self.changed.wait_for(lambda: len(self.updates) > since or self.is_ending, timeout_s)
            rooms = self.updates[since] if len(self.updates) > since else {}
            token = min(since + 1, len(self.updates)) if rooms else since
        return {"next_batch": f"s{token}", "rooms": rooms, "device_one_time_keys_count": {"signed_curve25519": 50},
                "device_unused_fallback_key_types": ["signed_curve25519"]}

    def update(self, room, events=(), state=(), kind="join"):
        for event in (*events, *state):
            event.setdefault("event_id", self.event_id())
        content = {"invite_state": {"events": list(state)}} if kind == "invite" else {
            "state": {"events": list(state)}, "timeline": {"events": list(events), "limited": False, "prev_batch": "p"}}
        with self.changed:
            self.updates.append({kind: {room: content}})
            self.changed.notify_all()

    def add_room(self, room, name="", encrypted=False, kind="join"):
        member = {"join": "join", "invite": "invite", "leave": "leave"}[kind]
        state = [room_event("m.room.member", {"membership": member}, state_key=ADA)]
        if name:
            state.append(room_event("m.room.name", {"name": name}, state_key=""))
        if encrypted:
            state.append(room_event("m.room.encryption", {"algorithm": "m.megolm.v1.aes-sha2"}, state_key=""))
        self.update(room, state=state, kind=kind)

    def talk(self, room, *bodies):
        """Texts, or whole contents, of bob."""
        self.update(room, events=[room_event("m.room.message", body if isinstance(body, dict) else
                                             {"msgtype": "m.text", "body": body}) for body in bodies])


class Device:
    """A data directory, and the commands on it."""

    def __init__(self, folder, home, name="ada"):
        self.home, self.data = home, os.path.join(folder, name)
        self.password = os.path.join(folder, "password")
        with open(self.password, "w", encoding="ascii") as file:
            print("secret", file=file)

    def command(self, *words):
        return [serving.TROUPE, "sync", *words, "--data", self.data]

    def run(self, *words, status=0, text="", limit_s=serving.LIMIT_S, **more):
        done = subprocess.run(self.command(*words), input=text, capture_output=True, text=True, timeout=limit_s, check=False,
                              env=serving.environment(), **more)
        assert done.returncode == status, f"{words}: {done.returncode}: {done.stdout} {done.stderr}"
        return done

    def login(self, status=0, **more):
        return self.run("login", "--homeserver", self.home.url, "--user", "ada", "--password-file", self.password, status=status,
                        **more)

    def lines(self, *words, **more):
        return [json.loads(line) for line in self.run(*words, "--json", **more).stdout.split("\n") if line]

    @contextlib.contextmanager
    def start(self, *words):
        """A command that runs on."""
        with subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=serving.environment()) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def tail(self, *words):
        """A tail that serves other commands."""
        with self.start("tail", "--json", *words) as process:
            serving.wait_until(lambda: os.path.exists(os.path.join(self.data, "engine.socket")) or process.poll() is not None,
                               "the tail serves")
            assert process.poll() is None, process.stderr.read()
            yield process
