#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe sync`, the shipped program, with matrix-js-sdk as its peer and a Synapse between them. Parts of cases' names on the
command line choose some; the cases that log in and verify always run."""
import contextlib
import gzip
import hashlib
import http.client
import http.server
import json
import os
import pty
import re
import select
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
# pylint: disable=wrong-import-position,import-error
import matrix_peers
from matrix_peers import LIMIT_S, Peer, ROOT, matrix_homeserver
from serving import wait_until

SHOWN = []  # all that the program printed to stderr
PROGRAM = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/debug"), "troupe")
CASES = []


def case(function):
    CASES.append(function)
    return function


# ---- the program ----------------------------------------------------------------------------------------------------

class Running:
    """A `troupe sync` that runs on: each line that it prints is an object."""

    def __init__(self, command):
        # pylint: disable=consider-using-with  # it ends in __exit__
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        bufsize=0)
        self.read, self.shown = b"", ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.problem()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                stream.close()

    def line(self):
        while b"\n" not in self.read:
            ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
            assert ready, "the program printed no line in time"
            got = os.read(self.process.stdout.fileno(), 65536)
            assert got, f"the program ended: {self.process.stderr.read()}"
            self.read += got
        text, self.read = self.read.split(b"\n", 1)
        return json.loads(text)

    def event(self):
        """Reads on until an event of another device."""
        while (found := self.line()).get("own"):
            pass
        return found

    def step(self, name):
        """Reads on until this step of a verification."""
        while (found := self.line())["step"] != name:
            assert found["step"] not in ("cancelled", "done"), found
        return found

    def say(self, text):
        self.process.stdin.write(text.encode() + b"\n")

    def end(self):
        return self.process.wait(LIMIT_S)

    def problem(self):
        """All that an ended program printed to stderr."""
        if not self.process.stderr.closed:
            SHOWN.append(self.process.stderr.read().decode())
            self.process.stderr.close()
            self.shown = SHOWN[-1]
        return self.shown


class Device:
    """A data directory and the commands on it."""

    def __init__(self, folder, name):
        self.folder, self.data = folder, os.path.join(folder, name)
        self.user_id = self.device_id = None

    def command(self, *words, as_json=True):
        return [PROGRAM, "sync", *words, "--data", self.data, *(["--json"] if as_json else [])]

    def run(self, *words, status=0, as_json=True, text=""):
        done = subprocess.run(self.command(*words, as_json=as_json), input=text, capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        SHOWN.append(done.stderr)
        assert status in (done.returncode, None), f"{words}: {done.returncode}: {done.stdout} {done.stderr}"
        return done

    def ask(self, *words, text=""):
        """The object that a command prints."""
        return json.loads(self.run(*words, text=text).stdout)

    def start(self, *words):
        return Running(self.command(*words))

    def login(self, server, user):
        answer = self.ask("login", "--homeserver", server.url, "--user", user, "--password-file", "-",
                          text=matrix_homeserver.PASSWORD + "\n")
        self.user_id, self.device_id = answer["userId"], answer["deviceId"]

    def device(self, peer):
        return {device["deviceId"]: device for device in self.ask("devices", peer.user_id)["devices"]}[peer.device_id]

    def trust_of(self, peer):
        return self.device(peer)["trust"]


class Stage:
    """ada by commands, bob by matrix-js-sdk, in an encrypted room that ada makes."""

    def __init__(self, server, folder, bob):
        self.server, self.folder, self.bob = server, folder, bob
        self.ada = Device(folder, "ada")
        self.room = None

    @contextlib.contextmanager
    def tail(self, *words):
        """A tail that has begun: its socket is there."""
        with self.ada.start("tail", *words) as tail:
            wait_until(lambda: os.path.exists(os.path.join(self.ada.data, "engine.socket")), "the tail serves")
            wait_until(lambda: self.ada.ask("status")["settled"], "the tail has synced")
            yield tail

    def file(self, name, size):
        path = os.path.join(self.folder, name)
        data = os.urandom(size)
        with open(path, "wb") as file:
            file.write(data)
        return path, hashlib.sha256(data).hexdigest()


# ---- cases ----------------------------------------------------------------------------------------------------------

@case
def a_room_is_made_by_commands(stage):
    assert "nobody has logged in" in stage.ada.run("rooms", status=1).stderr
    wrong = stage.ada.run("login", "--homeserver", stage.server.url, "--user", "ada", "--password-file", "-", status=1,
                          text="wrong\n")
    assert "refuses" in wrong.stderr, wrong.stderr
    stage.ada.login(stage.server, "ada")
    stage.bob.login(stage.server, "bob")
    assert stage.ada.user_id == "@ada:localhost"
    assert stage.ada.ask("status")["state"] == "ACTIVE"
    again = stage.ada.run("login", "--homeserver", stage.server.url, "--user", "ada", "--password-file", "-", status=1,
                          text=matrix_homeserver.PASSWORD)
    assert "has a login already" in again.stderr, again.stderr
    stage.room = stage.ada.ask("create", "--name", "commands")["roomId"]
    assert stage.ada.ask("invite", stage.room, stage.bob.user_id)["roomId"] == stage.room
    stage.bob.wait("member", roomId=stage.room, userId=stage.bob.user_id, membership="invite")
    stage.bob.call("join", roomId=stage.room)
    rooms = stage.ada.ask("rooms")["rooms"]
    assert [{name: room[name] for name in room if name != "power"} for room in rooms] == [{
        "roomId": stage.room, "membership": "join", "encrypted": True, "algorithm": "m.megolm.v1.aes-sha2", "syncRoom": True,
        "name": "commands"}], rooms
    assert rooms[0]["power"]["own"] == 100, rooms
    status, shown, _ = on_terminal(stage.ada.command("rooms", as_json=False), [])
    assert status == 0 and re.search(r"ROOM +MEMBERSHIP +ENCRYPTION +KIND +NAME", shown), shown
    assert re.search(re.escape(stage.room) + r" +join +encrypted +sync commands", shown), shown
    assert stage.ada.ask("state", stage.room, "m.room.name") == {"name": "commands"}
    assert "no state of the type" in stage.ada.run("state", stage.room, "m.room.topic", status=1).stderr


def login_token(server, user):
    """A token for another device of the user, as a homeserver gives it to a logged-in device."""
    who = {"type": "m.login.password", "identifier": {"type": "m.id.user", "user": user}, "password": matrix_homeserver.PASSWORD}
    status, login = server.ask("POST", "/_matrix/client/v3/login", who)
    assert status == 200, login
    status, given = server.ask("POST", "/_matrix/client/v1/login/get_token", {}, login["access_token"])
    assert status == 200, given
    server.ask("POST", "/_matrix/client/v3/logout", {}, login["access_token"])
    return given["login_token"]


@case
def a_login_token_works_once(stage):
    device, late = Device(stage.folder, "ada-token"), Device(stage.folder, "ada-token-late")
    words = ("login", "--homeserver", stage.server.url, "--token-file", "-")
    assert "refuses the token of --token-file" in device.run(*words, status=1, text="wrong\n").stderr
    token = login_token(stage.server, "ada")
    assert device.ask(*words, text=token + "\n")["userId"] == "@ada:localhost"
    assert device.ask("status")["state"] == "ACTIVE"
    again = late.run(*words, status=1, text=token + "\n")
    assert "A login token works once" in again.stderr, again.stderr
    device.ask("logout")


@case
def an_invitation_is_joined(stage):
    room = stage.bob.call("create_room", name="of bob")["roomId"]
    stage.bob.call("invite", roomId=room, userId=stage.ada.user_id)
    wait_until(lambda: {"roomId": room, "membership": "invite"}.items() <= {
        found["roomId"]: found for found in stage.ada.ask("rooms")["rooms"]}.get(room, {}).items(), "ada sees the invitation")
    invitation = {found["roomId"]: found for found in stage.ada.ask("rooms")["rooms"]}[room]
    assert invitation["inviter"] == stage.bob.user_id and invitation["name"] == "of bob", invitation
    assert invitation["encrypted"] and not invitation["syncRoom"], invitation
    shown = stage.ada.run("rooms", as_json=False).stdout
    assert re.search(re.escape(room) + rf" +invite +encrypted +- +of bob \(invited by {stage.bob.user_id}\)", shown), shown
    assert stage.ada.ask("join", room)["roomId"] == room
    stage.bob.wait("member", roomId=room, userId=stage.ada.user_id, membership="join")
    members = {member["userId"]: member["membership"] for member in stage.ada.ask("members", room)["members"]}
    assert members == {stage.ada.user_id: "join", stage.bob.user_id: "join"}, members
    assert f"{stage.bob.user_id} " in stage.ada.run("members", room, as_json=False).stdout
    assert "not known here" in stage.ada.run("members", "!nowhere:localhost", status=1).stderr
    assert stage.ada.ask("leave", room)["roomId"] == room
    stage.bob.wait("member", roomId=room, userId=stage.ada.user_id, membership="leave")
    assert {found["roomId"]: found["membership"] for found in stage.ada.ask("rooms")["rooms"]}[room] == "leave"


@case
def secrets_are_for_their_user_alone(stage):
    with stage.tail():
        for name in os.listdir(stage.ada.data):
            mode = stat.S_IMODE(os.lstat(os.path.join(stage.ada.data, name)).st_mode)
            assert mode == 0o600, (name, oct(mode))
    assert stat.S_IMODE(os.stat(stage.ada.data).st_mode) == 0o700
    key = os.path.join(stage.ada.data, "key")
    with open(key, encoding="ascii") as file:
        text = file.read()
    with open(os.path.join(stage.ada.data, "sync.db"), "rb") as file:
        stored = file.read()
    assert bytes.fromhex(text) not in stored and text.strip().encode() not in stored
    other = os.path.join(stage.folder, "other.key")
    with open(os.open(other, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
        file.write("00" * 32)
    assert "does not open" in stage.ada.run("rooms", "--key-file", other, status=1).stderr
    os.chmod(other, 0o644)
    assert "chmod 600" in stage.ada.run("rooms", "--key-file", other, status=1).stderr
    with open(key, encoding="ascii") as file:
        done = subprocess.run(stage.ada.command("rooms", "--key-fd", str(file.fileno())), pass_fds=[file.fileno()],
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr


def compare(stage, running, transaction, answer):
    """Both see the same; the commands and bob answer. Returns the exit status."""
    shown, theirs = running.step("compare"), stage.bob.wait("sas", transactionId=transaction)
    assert shown["emoji"] == theirs["emoji"] and shown["decimals"] == theirs["decimals"], (shown, theirs)
    assert len(shown["emoji"]) == 7 and shown["transactionId"] == transaction, shown
    if answer == "yes":
        stage.bob.call("confirm", transactionId=transaction)
    running.say(answer)
    return running.end()


def verify_bob(stage, answer, *device):
    with stage.ada.start("verify", stage.bob.user_id, *device) as running:
        asked = stage.bob.wait("verification_request", deviceId=stage.ada.device_id)
        stage.bob.call("accept", transactionId=asked["transactionId"])
        return compare(stage, running, asked["transactionId"], answer), asked["transactionId"]


@case
def a_no_verifies_nobody(stage):
    status, transaction = verify_bob(stage, "no")
    assert status == 1
    assert stage.bob.wait("cancelled", transactionId=transaction)["code"] == "m.mismatched_sas"
    assert stage.ada.trust_of(stage.bob) == "unverified"


@case
def a_message_before_the_verification_warns(stage):
    sent = stage.ada.run("send", stage.room, "too early")
    assert json.loads(sent.stdout)["unverified"] == 1 and "not verified" in sent.stderr, sent
    stage.bob.wait("undecryptable", roomId=stage.room)


@case
def a_message_that_halts_waits_under_its_own_policy(stage):
    """Bob is not verified: his device is named, and no later command sends the message to him or around him."""
    refused = stage.ada.run("send", stage.room, "for verified eyes", "--share", "halt", status=1)
    assert f"1 device of the room is not verified: {stage.bob.user_id} {stage.bob.device_id}." in refused.stderr, refused.stderr
    assert not refused.stdout, refused
    waits, = map(json.loads, stage.ada.run("outbox").stdout.splitlines())
    assert {"roomId": stage.room, "state": "waiting", "share": "halt", "content": {
        "msgtype": "m.text", "body": "for verified eyes"}}.items() <= waits.items(), waits
    assert waits["txnId"] in refused.stderr
    behind = stage.ada.run("send", stage.room, "to all", "--share", "all", status=1)
    assert f"behind {waits['txnId']}, which waits until" in behind.stderr, behind.stderr
    shown = stage.ada.run("outbox", "list", as_json=False).stdout
    assert re.search(rf"{waits['txnId']} +waiting +halt +{re.escape(stage.room)} +for verified eyes\n"
                     rf"m\d+ +waiting +all +{re.escape(stage.room)} +to all\n", shown), shown
    assert stage.ada.ask("status")["unsent"] == 2
    assert stage.ada.ask("outbox", "drop", waits["txnId"])["dropped"] == waits["txnId"]
    assert "No unsent event has the id" in stage.ada.run("outbox", "drop", waits["txnId"], status=1).stderr
    # The one behind it goes as it was asked to: to all. A command may have sent it since the drop.
    last = re.search(r"(m\d+) +waiting +all", shown).group(1)
    stage.ada.run("outbox", "retry", last, status=None)
    assert stage.bob.wait("message", roomId=stage.room)["content"]["body"] == "to all"
    wait_until(lambda: stage.ada.run("outbox").stdout == "", "the outbox is empty")


@case
def a_message_to_all_devices_needs_no_verification(stage):
    sent = stage.ada.ask("send", stage.room, "to all", "--share", "all")
    assert sent["unverified"] == 0, sent
    assert stage.bob.wait("message", roomId=stage.room, eventId=sent["eventId"])["content"]["body"] == "to all"


@case
def an_interrupted_verification_is_cancelled(stage):
    with stage.ada.start("verify", stage.bob.user_id) as running:
        asked = stage.bob.wait("verification_request", deviceId=stage.ada.device_id)
        stage.bob.call("accept", transactionId=asked["transactionId"])
        running.step("compare")
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 1
        stage.bob.wait("cancelled", transactionId=asked["transactionId"])


@case
def a_cancel_of_the_peer_ends_the_question(stage):
    with stage.ada.start("verify", stage.bob.user_id) as running:
        asked = stage.bob.wait("verification_request", deviceId=stage.ada.device_id)
        stage.bob.call("accept", transactionId=asked["transactionId"])
        running.step("compare")
        stage.bob.call("cancel", transactionId=asked["transactionId"])
        while (found := running.line())["step"] != "cancelled":
            assert found["step"] != "done", found
        assert found["byPeer"] and found["failure"] == "m.user", found
        assert running.end() == 1


@case
def a_verification_that_ada_asks_for_ends_with_0(stage):
    status, transaction = verify_bob(stage, "yes", stage.bob.device_id)
    assert status == 0
    stage.bob.wait("verified", transactionId=transaction)
    assert stage.ada.trust_of(stage.bob) == "verified" and stage.bob.known_devices(
        stage.ada.user_id)[stage.ada.device_id]["verified"]


@case
def a_verification_that_bob_asks_for_ends_with_0(stage):
    with stage.ada.start("verify", "--listen") as running:
        wait_until(lambda: os.path.exists(os.path.join(stage.ada.data, "engine.socket")), "ada listens")
        wait_until(lambda: stage.ada.ask("status")["settled"], "ada has synced")
        call = stage.bob.begin("verify", userId=stage.ada.user_id, deviceId=stage.ada.device_id)
        transaction = running.step("asked")["transactionId"]
        status = compare(stage, running, transaction, "yes")
        stage.bob.end(call)
        assert status == 0
        stage.bob.wait("verified", transactionId=transaction)


@case
def a_request_that_came_before_its_listener_is_heard(stage):
    with stage.tail():
        before = stage.ada.ask("status")["newsSeq"]
        call = stage.bob.begin("verify", userId=stage.ada.user_id, deviceId=stage.ada.device_id)
        wait_until(lambda: stage.ada.ask("status")["newsSeq"] > before, "the request has come")
        with stage.ada.start("verify", "--listen") as running:
            transaction = running.step("asked")["transactionId"]
            status = compare(stage, running, transaction, "yes")
            stage.bob.end(call)
            assert status == 0
            stage.bob.wait("verified", transactionId=transaction)


@case
def an_old_client_verifies_with_a_bare_start(stage):
    """matrix-nio knows neither requests nor the new MAC."""
    with Peer("nio", stage.folder, "bob-old") as old:
        old.login(stage.server, "bob")
        with stage.ada.start("verify", "--listen") as running:
            wait_until(lambda: os.path.exists(os.path.join(stage.ada.data, "engine.socket")), "ada listens")
            wait_until(lambda: stage.ada.ask("status")["settled"], "ada has synced")
            wait_until(lambda: stage.ada.device_id in old.known_devices(stage.ada.user_id), "the old client knows ada's device")
            transaction = old.call("verify", userId=stage.ada.user_id, deviceId=stage.ada.device_id, legacy=True)["transactionId"]
            shown, theirs = running.step("compare"), old.wait("sas", transactionId=transaction)
            assert shown["emoji"] == theirs["emoji"] and shown["decimals"] == theirs["decimals"], (shown, theirs)
            old.call("confirm", transactionId=transaction)
            running.say("yes")
            assert running.end() == 0
            old.wait("verified", transactionId=transaction)
        assert stage.ada.trust_of(old) == "verified"
        old.call("logout")


def on_terminal(command, answers, limit_s=LIMIT_S):
    """Runs a command on a terminal and types an answer after each text that it waits for. Returns its exit status, what it
    showed, and the most memory that it had, in KiB."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    shown, left, deadline = "", list(answers), time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 1)
        try:
            got = os.read(terminal, 4096) if ready else b" "
        except OSError:
            break
        shown += got.decode(errors="replace") if ready else ""
        if left and left[0][0] in shown:
            os.write(terminal, left.pop(0)[1]().encode())
    os.close(terminal)
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), shown, used.ru_maxrss


@case
def a_person_compares_emoji_on_a_terminal(stage):
    def accept():
        asked = stage.bob.wait("verification_request", deviceId=stage.ada.device_id)
        stage.bob.call("accept", transactionId=asked["transactionId"])
        theirs.append(stage.bob.wait("sas", transactionId=asked["transactionId"]))
        stage.bob.call("confirm", transactionId=asked["transactionId"])
        return ""
    theirs = []
    status, shown, _ = on_terminal(stage.ada.command("verify", stage.bob.user_id, as_json=False),
                                [("Waiting for the other device", accept), ("(y/n)", lambda: "y\n")])
    assert status == 0 and "is verified" in shown, shown
    rows = re.findall(r"^   (\S+)  ([A-Z][A-Za-z ]+)\r$", shown, re.MULTILINE)
    assert len(rows) == 7 and theirs, shown


def emoji_table(translated):
    """The specification's table, by the source of ours."""
    with open(os.path.join(ROOT, "src/matrix/crypto/sas_emoji.c"), encoding="utf-8") as file:
        found = re.findall(r'\{ "(.+)", "(.+)" \}', file.read())
    assert len(found) == 64
    return [{"number": number, "emoji": emoji, "description": name, "translated_descriptions": translated(number)}
            for number, (emoji, name) in enumerate(found)]


@case
def emoji_have_names_in_the_language_of_a_file(stage):
    def accept():
        asked = stage.bob.wait("verification_request", deviceId=stage.ada.device_id)
        stage.bob.call("accept", transactionId=asked["transactionId"])
        theirs.append(stage.bob.wait("sas", transactionId=asked["transactionId"])["emoji"])
        return ""
    path, theirs = os.path.join(stage.folder, "sas-emoji.json"), []
    with open(path, "w", encoding="utf-8") as file:
        json.dump(emoji_table(lambda number: {"fr": None} if number % 2 else {"de": f"Wort {number}", "fr": "mot"}), file)
    status, shown, _ = on_terminal(["/usr/bin/env", "LC_ALL=de_DE.UTF-8", *stage.ada.command(
        "verify", stage.bob.user_id, "--emoji", path, as_json=False)], [("Waiting for the other device", accept),
                                                                        ("(y/n)", lambda: "n\n")])
    assert status == 1, shown
    names = [f"Wort {number}" if number % 2 == 0 else emoji_table(lambda _: {})[number]["description"] for number in theirs[0]]
    assert re.findall(r"^   \S+  (.+)\r$", shown, re.MULTILINE) == names, (shown, names)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(emoji_table(lambda _: {})[:63], file)
    assert "is not the table of emoji" in stage.ada.run("verify", stage.bob.user_id, "--emoji", path, status=1).stderr


@case
def bob_reads_what_a_command_sends(stage):
    for number in range(5):
        sent = stage.ada.ask("send", stage.room, f"message {number}")
        assert sent["unverified"] == 0, sent
        message = stage.bob.wait("message", roomId=stage.room, eventId=sent["eventId"])
        assert message["content"]["body"] == f"message {number}" and message["encrypted"], message


@case
def the_largest_text_arrives_and_a_larger_one_is_refused(stage):
    for largest in ("x" * 46_000, "\n" * 23_000, "é" * 23_000):
        sent = stage.ada.ask("send", stage.room, largest)
        assert stage.bob.wait("message", roomId=stage.room, eventId=sent["eventId"])["content"]["body"] == largest
        refused = stage.ada.run("send", stage.room, largest + "x", status=1)
        assert "The text has 46001 bytes as JSON" in refused.stderr and "the most is 46000." in refused.stderr, refused.stderr
    assert stage.ada.ask("status")["unsent"] == 0


@case
def a_tail_prints_what_bob_sends(stage):
    with stage.tail("--room", stage.room, "--count", "3") as tail:
        for number in range(3):
            sent = stage.bob.call("send", roomId=stage.room, text=f"from bob {number}")
            event = tail.event()
            assert (event["eventId"], event["content"]["body"]) == (sent["eventId"], f"from bob {number}"), event
        assert tail.end() == 0
        assert event["own"] is False and event["encryption"] == {
            "encrypted": True, "deviceId": stage.bob.device_id, "trust": "verified",
            "identityKey": stage.ada.device(stage.bob)["curve25519"]}, event
    since = event["seq"] - 3
    with stage.ada.start("tail", "--since", str(since), "--count", "3") as tail:
        assert [tail.event()["content"]["body"] for _ in range(3)] == [f"from bob {number}" for number in range(3)]
        assert tail.end() == 0


@case
def own_messages_are_shown_once_and_marked(stage):
    since = stage.ada.ask("status")["lastSeq"]
    sent = [stage.ada.ask("send", stage.room, f"of my own {number}")["eventId"] for number in range(2)]
    for event_id in sent:
        stage.bob.wait("message", roomId=stage.room, eventId=event_id)
    last = stage.bob.call("send", roomId=stage.room, text="of another")["eventId"]
    for _ in range(2):  # again from the database
        with stage.ada.start("tail", "--since", str(since), "--count", "1") as tail:
            events = [tail.line() for _ in range(3)]
            assert [event["eventId"] for event in events] == [*sent, last], events
            assert [event["own"] for event in events] == [True, True, False], events
            assert events[0]["encryption"]["trust"] == "own" and events[0]["encryption"]["deviceId"] == stage.ada.device_id
            assert events[0]["content"]["body"] == "of my own 0", events
            assert tail.end() == 0
    shown = stage.ada.run("tail", "--since", str(since), "--count", "1", as_json=False).stdout.splitlines()
    assert [line.split(" ")[0] for line in shown] == ["[own]", "[own]", "[verified]"], shown


@case
def a_message_of_an_unverified_device_is_marked(stage):
    """The device that a homeserver could invent: it is listed, and nobody has verified it."""
    new = Device(stage.folder, "bob-new")
    new.login(stage.server, "bob")
    sent = new.ask("send", stage.room, "I am bob, too", "--share", "all")["eventId"]
    stage.bob.wait("message", roomId=stage.room, eventId=sent)
    with stage.ada.start("tail", "--count", "1") as tail:
        event = tail.event()
        assert tail.end() == 0
    assert event["eventId"] == sent and event["sender"] == stage.bob.user_id, event
    assert event["encryption"]["trust"] == "unverified" and event["encryption"]["deviceId"] == new.device_id, event
    words = ("tail", "--since", str(event["seq"] - 1), "--count", "1")
    assert stage.ada.run(*words, as_json=False).stdout.startswith("[unverified] "), words
    new.ask("logout")
    wait_until(lambda: new.device_id not in {device["deviceId"] for device in stage.ada.ask(
        "devices", stage.bob.user_id)["devices"]}, "ada knows that the device is gone")
    assert stage.ada.run(*words, as_json=False).stdout.startswith("[gone, was unverified] "), words


@case
def commands_go_through_a_running_engine(stage):
    with stage.tail() as tail:
        sent = [stage.ada.start("send", stage.room, f"beside {number}") for number in range(8)]
        events = {running.line()["eventId"] for running in sent}
        for running in sent:
            assert running.end() == 0
            running.__exit__()
        read = {stage.bob.wait("message", roomId=stage.room)["eventId"] for _ in sent}
        assert read == events and len(events) == 8
        assert "another process" in stage.ada.run("status", as_json=False).stdout
        stage.ada.run("send", stage.room, "under its own policy", "--share", "halt")  # bob is verified
        stage.bob.wait("message", roomId=stage.room)
        refused = stage.ada.run("verify", "--listen", "--share", "all", status=1)
        assert "keeps its own --share" in refused.stderr and not refused.stdout, refused
        stage.bob.call("send", roomId=stage.room, text="to the tail")
        assert tail.event()["content"]["body"] == "to the tail"
        tail.process.send_signal(signal.SIGTERM)
        assert tail.end() == 0
    assert not os.path.exists(os.path.join(stage.ada.data, "engine.socket"))


@case
def a_verification_goes_through_a_running_engine(stage):
    with stage.tail():
        status, transaction = verify_bob(stage, "yes")
        assert status == 0
        stage.bob.wait("verified", transactionId=transaction)


@case
def a_new_room_invites_at_once(stage):
    room = stage.ada.run("create", "--name", "invites", "--invite", stage.bob.user_id, as_json=False).stdout.strip()
    stage.bob.wait("member", roomId=room, userId=stage.bob.user_id, membership="invite")
    assert "!" in room and "\n" not in room


@case
def a_killed_engine_leaves_no_lock(stage):
    with stage.tail() as tail:
        tail.process.kill()
        tail.process.wait()
        sent = stage.ada.ask("send", stage.room, "after the kill")
        stage.bob.wait("message", roomId=stage.room, eventId=sent["eventId"])


@case
def commands_without_an_engine_take_turns(stage):
    sent = [stage.ada.start("send", stage.room, f"turn {number}") for number in range(4)]
    for running in sent:
        assert running.end() == 0, running.process.stderr.read()
        running.__exit__()
    assert {stage.bob.wait("message", roomId=stage.room)["content"]["body"] for _ in sent} == {
        f"turn {number}" for number in range(4)}


@case
def attachments_arrive_whole_in_both_directions(stage):
    for size in (0, 1, 3_000_000):
        path, digest = stage.file(f"{size}.bin", size)
        sent = stage.ada.ask("attach", stage.room, path)
        message = stage.bob.wait("message", roomId=stage.room, eventId=sent["eventId"])
        got = stage.bob.call("download", content=message["content"])
        assert (got["size"], got["sha256"]) == (size, digest), got
        saved = os.path.join(stage.folder, "saved")
        with stage.tail("--count", "1", "--save", saved) as tail:
            stage.bob.call("attach", roomId=stage.room, path=path, name=f"../{size}.bin" if size == 1 else f"{size}.bin")
            event = tail.event()
            assert tail.end() == 0
        assert os.path.dirname(event["saved"]) == os.path.realpath(saved), event
        with open(event["saved"], "rb") as file:
            assert hashlib.sha256(file.read()).hexdigest() == digest
    assert not [name for name in os.listdir(saved) + os.listdir(stage.ada.data) if name.endswith(".part") or "upload" in name]


@case
def json_is_compressed_and_saved_as_it_was(stage):
    text = json.dumps([{"number": number} for number in range(10_000)]).encode()
    path, saved = os.path.join(stage.folder, "list.json"), os.path.join(stage.folder, "saved-json")
    with open(path, "wb") as file:
        file.write(text)
    reader = Device(stage.folder, "bob-json")
    reader.login(stage.server, "bob")
    sent = stage.ada.ask("attach", stage.room, path, "--share", "all")
    content = stage.bob.wait("message", roomId=stage.room, eventId=sent["eventId"])["content"]
    assert content["body"] == "list.json.gz" and content["org.troupe.encoding"] == "gzip", content
    assert content["info"] == {"size": len(text), "mimetype": "application/gzip"}, content
    got = stage.bob.call("download", content=content, path=path + ".gz")
    with open(path + ".gz", "rb") as file:
        assert gzip.decompress(file.read()) == text and got["size"] < len(text) // 4, got
    with reader.start("tail", "--since", "0", "--save", saved) as tail:
        while (event := tail.event())["eventId"] != sent["eventId"] or "unread" in event:
            pass
    assert event["saved"] == os.path.join(os.path.realpath(saved), "list.json"), event
    with open(event["saved"], "rb") as file:
        assert file.read() == text
    reader.ask("logout")


@case
def an_upload_shows_its_progress_and_takes_no_memory(stage):
    used = []
    for size in (1, 40_000_000):
        path, _ = stage.file("large.bin", size)
        status, shown, memory = on_terminal(stage.ada.command("attach", stage.room, path, as_json=False), [])
        assert status == 0 and re.search(r"upload +\[#* *\] +\d+%", shown), shown
        used.append(memory)
        stage.bob.wait("message", roomId=stage.room)
    assert used[1] < used[0] + 8 * 1024, used


class MediaProxy:
    """Passes all requests on to the homeserver. Of downloads it keeps the ranges that were asked for, which it serves itself since
    Synapse does not; each stops after some bytes until `go`."""

    def __init__(self, url, stop_bytes):
        self.upstream, self.stop_bytes = urllib.parse.urlsplit(url).netloc, stop_bytes
        self.ranges, self.go = [], threading.Event()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):  # pylint: disable=invalid-name  # the base class names it
                with contextlib.suppress(OSError):  # the program was killed
                    proxy.pass_on(self)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_):  # pylint: disable=arguments-differ
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def pass_on(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection(self.upstream, timeout=LIMIT_S)
        upstream.request(request.command, request.path, body, {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "range", "accept-encoding")})
        answer = upstream.getresponse()
        data, status, is_media = answer.read(), answer.status, "/media/download/" in request.path
        upstream.close()
        if request.path.startswith("/.well-known/"):
            status, data = 404, b"{}"  # it would name the homeserver itself
        if is_media:
            self.ranges.append(request.headers.get("Range"))
            if self.ranges[-1]:
                first, size = int(re.fullmatch(r"bytes=(\d+)-", self.ranges[-1]).group(1)), len(data)
                data, status = data[first:], 206
        request.send_response(status)
        if status == 206:
            request.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        request.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if is_media:
            request.wfile.write(data[:self.stop_bytes])
            request.wfile.flush()
            self.go.wait(LIMIT_S)
            data = data[self.stop_bytes:]
        request.wfile.write(data)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.go.set()
        self.server.shutdown()
        self.server.server_close()


@case
def a_download_shows_its_progress_and_goes_on_where_it_stopped(stage):
    def go():
        proxy.go.set()
        return ""

    def part_sizes():
        return [os.path.getsize(os.path.join(saved, name)) for name in os.listdir(saved)] if os.path.isdir(saved) else []
    size, stop = 3_000_000, 1_000_000
    path, digest = stage.file("resumed.bin", size)
    saved, reader = os.path.join(stage.folder, "saved-resumed"), Device(stage.folder, "ada-resumes")
    with MediaProxy(stage.server.url, stop) as proxy:
        reader.login(proxy, "ada")
        wait_until(lambda: reader.device_id in stage.bob.known_devices(stage.ada.user_id), "bob knows the device")
        stage.bob.call("attach", roomId=stage.room, path=path, name="resumed.bin")
        with reader.start("tail", "--since", "0", "--save", saved) as tail:
            wait_until(lambda: part_sizes() == [stop], "a part is saved")
            tail.process.kill()
            tail.process.wait()
        words = reader.command("tail", "--since", "0", "--count", "1", "--save", saved, as_json=False)
        # The second download stops as well: the bar counts the part, too.
        status, shown, _ = on_terminal(words, [(f"{200 * stop // size}%", go)])
        reader.ask("logout")
    assert status == 0 and proxy.ranges == [None, f"bytes={stop}-"], (status, proxy.ranges, shown)
    assert re.search(rf"download +\[#+ *\] +{200 * stop // size}%", shown), shown
    with open(os.path.join(saved, "resumed.bin"), "rb") as file:
        assert hashlib.sha256(file.read()).hexdigest() == digest
    assert os.listdir(saved) == ["resumed.bin"]


@case
def a_catch_up_shows_its_progress_on_a_terminal(stage):
    since = stage.ada.ask("status")["lastSeq"]
    begun = [stage.bob.begin("send", roomId=stage.room, text=f"missed {number}") for number in range(200)]
    for call in begun:
        stage.bob.end(call)
    status, shown, _ = on_terminal(stage.ada.command("tail", "--since", str(since), "--count", "200", as_json=False), [])
    assert status == 0 and "missed 199" in shown, (status, shown[-300:])
    assert re.search(r"Catching up \[#* *\] \d+ events", shown), shown[:300]


@case
def exported_keys_open_messages_on_another_device(stage):
    word = os.path.join(stage.folder, "passphrase")
    with open(word, "w", encoding="ascii") as file:
        print("correct horse", file=file)
    keys = os.path.join(stage.folder, "keys.txt")
    stage.bob.call("send", roomId=stage.room, text="for the later device")
    with stage.tail("--since", "0") as tail:
        while (event := tail.event())["content"].get("body") != "for the later device":
            pass
    assert stage.ada.ask("keys", "export", keys, "--passphrase-file", word)["sessions"] > 0
    assert stat.S_IMODE(os.stat(keys).st_mode) == 0o600
    later = Device(stage.folder, "ada-later")
    later.login(stage.server, "ada")
    with open(word + ".wrong", "w", encoding="ascii") as file:
        print("wrong", file=file)
    # Before the keys come, the events say why they cannot be read.
    unread = later.ask("status")["unread"]
    assert unread and unread[0]["unread"] == "held" and unread[0]["events"] > 0, unread
    assert "The key has not come." in unread[0]["reason"], unread
    assert re.search(r"waiting +\d+ events?: The key has not come", later.run("status", as_json=False).stdout)
    with later.start("tail", "--since", "0") as tail:
        while (held := tail.event())["eventId"] != event["eventId"]:
            pass
    assert held["unread"] == "held" and held["reason"] == unread[0]["reason"] and "content" not in held, held
    assert "passphrase" in later.run("keys", "import", keys, "--passphrase-file", word + ".wrong", status=1).stderr
    assert later.ask("keys", "import", keys, "--passphrase-file", word)["taken"] > 0
    with later.start("tail", "--since", "0") as tail:
        while (opened := tail.event())["eventId"] != event["eventId"] or "unread" in opened:
            pass
    assert opened["content"]["body"] == "for the later device", opened
    assert opened["encryption"]["trust"] == "imported", opened
    later.ask("logout")


def delete_device(server, user, device_id):
    """Another device of the user deletes this one: the server ends its login for good."""
    who = {"type": "m.login.password", "identifier": {"type": "m.id.user", "user": user}, "password": matrix_homeserver.PASSWORD}
    status, login = server.ask("POST", "/_matrix/client/v3/login", who)
    assert status == 200, login

    def delete(auth):
        return server.ask("POST", "/_matrix/client/v3/delete_devices", {"devices": [device_id], **auth}, login["access_token"])
    _, asked = delete({})
    status, answer = delete({"auth": {**who, "session": asked["session"]}})
    assert status == 200, answer


@case
def a_login_that_ends_for_good_ends_what_waits(stage):
    gone = Device(stage.folder, "ada-gone")
    gone.login(stage.server, "ada")
    with gone.start("tail") as tail:
        wait_until(lambda: os.path.exists(os.path.join(gone.data, "engine.socket")), "the tail serves")
        with gone.start("verify", "--listen") as listens:
            wait_until(lambda: gone.ask("status")["settled"], "the tail has synced")
            delete_device(stage.server, "ada", gone.device_id)
            assert (tail.end(), listens.end()) == (1, 1)
            for running in (tail, listens):
                assert "The login has ended for good; 0 unsent messages and all received events are kept." in running.problem(), \
                    running.shown
    status = gone.ask("status")
    assert status["state"] == "ENDED" and "ended for good" in status["problem"], status
    assert "ended for good" in gone.run("status", as_json=False).stdout
    assert "ended for good" in gone.run("send", stage.room, "too late", status=1).stderr


def server_tokens(server, column, table="access_tokens"):
    with contextlib.closing(sqlite3.connect(f"file:{server.path('homeserver.db')}?mode=ro", uri=True)) as database:
        return [value for (value,) in database.execute(f"SELECT {column} FROM {table}")]


@case
def a_tail_logs_in_again_with_its_password_file(stage):
    """The server ends each login after some seconds and refuses to refresh its token."""
    soft = Device(stage.folder, "ada-soft")
    words = {name: os.path.join(stage.folder, name) for name in ("right", "wrong")}
    for name, path in words.items():
        with open(path, "w", encoding="ascii") as file:
            print(matrix_homeserver.PASSWORD if name == "right" else "wrong", file=file)
    with matrix_peers.homeserver(os.path.join(stage.folder, "soft"), session_lifetime="5s", refresh_token_lifetime="5s",
                                 refreshable_access_token_lifetime="5s") as server:
        server.register("ada")
        soft.login(server, "ada")
        with soft.start("tail") as tail:
            assert tail.end() == 1
            assert "The server has ended the login; keys and 0 unsent messages are kept." in tail.problem(), tail.shown
        assert "has ended the login" in soft.ask("status")["problem"]
        assert "has ended the login" in soft.run("rooms", status=1).stderr
        assert "refuses the password of --password-file" in soft.run(
            "tail", "--password-file", words["wrong"], status=1).stderr
        with soft.start("tail", "--password-file", words["right"]) as tail:
            wait_until(lambda: os.path.exists(os.path.join(soft.data, "engine.socket")), "the tail serves")
            wait_until(lambda: soft.ask("status")["settled"], "the tail has synced")
            first = server_tokens(server, "MAX(id)")[0]
            # A request finds out that the login has ended; the engine then has the password.
            wait_until(lambda: subprocess.run(soft.command("create", "--name", "x"), capture_output=True, timeout=LIMIT_S,
                                              check=False).returncode == 0 and server_tokens(server, "MAX(id)")[0] >= first + 2,
                       "a room is made after more logins")
            assert tail.process.poll() is None and soft.ask("status")["deviceId"] == soft.device_id


@case
def the_homeserver_of_the_guide_runs_until_a_signal(stage):
    """`make matrix-homeserver`, with files of its own: a developer may run the usual one."""
    folder, device = os.path.join(stage.folder, "development"), Device(stage.folder, "ada-development")
    address, printed = os.path.join(stage.folder, "url"), os.path.join(stage.folder, "printed")
    with open(printed, "wb") as out, subprocess.Popen(
            ["/usr/bin/python3", os.path.join(ROOT, "tools/matrix_homeserver.py"), "--port", "0", "--data", folder, "--address",
             address], stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process:
        try:
            wait_until(lambda: os.path.exists(address) or process.poll() is not None, "the homeserver has an address")
            assert process.poll() is None, matrix_homeserver.last_line(open_text(printed))
            server = matrix_homeserver.Homeserver(folder)
            server.url = open_text(address).strip()
            device.login(server, "ada")
            assert device.user_id == "@ada:localhost"
            assert server.url in open_text(printed) and "users ada and bob, password troupe-dev" in open_text(printed)
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()  # its Synapse ends with it
    assert not os.path.exists(address)
    assert "No homeserver answers" in Device(stage.folder, "ada-nowhere").run(
        "login", "--homeserver", server.url, "--user", "ada", "--password-file", "-", status=1,
        text=matrix_homeserver.PASSWORD).stderr


def open_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def guide_blocks():
    """The lines of docs/guide/matrix.md that a reader pastes, block by block, for users of this case."""
    with open(os.path.join(ROOT, "docs/guide/matrix.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```sh\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)
    return [block.replace("ada", "gina").replace("bob", "hugo").splitlines() for block in blocks]


class Terminal:
    """A shell in the reader's folder. The reader types one line after the other; `make` has been run."""

    def __init__(self, folder):
        # pylint: disable=consider-using-with  # it ends in __exit__
        self.process = subprocess.Popen(["/bin/bash", "--norc", "--noprofile"], cwd=folder, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.shown, self.count = "", 0
        jq = "import json, sys; print(json.load(sys.stdin)['content']['body'])"
        self.send(f"make() {{ :; }}; type jq >/dev/null 2>&1 || jq() {{ python3 -c \"{jq}\"; }}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        SHOWN.append(self.shown)

    def send(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait(self, pattern):
        """Reads on until the pattern is shown, and drops all before its end."""
        while not (found := re.search(pattern, self.shown)):
            ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
            assert ready, f"not shown in time: {pattern} in {self.shown}"
            got = os.read(self.process.stdout.fileno(), 65536)
            assert got, f"the shell ended: {self.shown}"
            self.shown += got.decode()
        before, self.shown = self.shown[:found.start()], self.shown[found.end():]
        SHOWN.append(before)
        return before, found

    def type(self, line):
        """Runs a line, which must succeed. Returns what it printed."""
        self.count += 1
        self.send(line)
        self.send(f'echo "end {self.count}: $?"')
        shown, found = self.wait(rf"end {self.count}: (\d+)\n")
        assert found.group(1) == "0", (line, shown)
        return shown

    def paste(self, block):
        return "".join(self.type(line) for line in block)


def guide_folder(stage):
    """A clone in which `make release` and `make matrix-homeserver` have been run."""
    folder = os.path.join(stage.folder, "guide")
    os.makedirs(os.path.join(folder, "build/matrix"))
    os.symlink(os.path.dirname(PROGRAM), os.path.join(folder, "build/release"))
    with open(os.path.join(folder, "build/matrix/url"), "w", encoding="ascii") as file:
        print(stage.server.url, file=file)
    for user in ("gina", "hugo"):
        stage.server.register(user)
    return folder


@case
def the_guide_does_what_it_says(stage):
    """Each block is pasted in the order of the page, into the terminal that the page names."""
    folder, blocks = guide_folder(stage), guide_blocks()

    def take(first):
        assert blocks[0][0].startswith(first), (first, blocks[0])
        return blocks.pop(0)
    assert take("make release")[1].startswith("make matrix-homeserver")
    with Terminal(folder) as second, Terminal(folder) as third:
        shown = second.paste(take("PATH="))
        assert "Logged in as @gina:localhost" in shown and "Logged in as @hugo:localhost" in shown, shown
        shown = second.paste(take("room="))
        assert "notes" in shown and "@hugo:localhost" in shown, shown
        listens, = take("troupe sync verify --listen")
        asks = take("PATH=")
        second.send(listens)
        wait_until(lambda: Device(folder, "hugo").ask("status")["settled"], "hugo listens")
        third.type(asks[0])
        third.send(asks[1])
        codes = [terminal.wait(r"\(y/n\) ")[0].split("\n\n")[1] for terminal in (second, third)]
        assert codes[0] == codes[1] and len(codes[0].splitlines()) == 7, codes
        for terminal in (second, third):
            terminal.send("y")
        for terminal in (second, third):
            terminal.wait("is verified.")
            terminal.type(":")
        talk = take("troupe sync tail --data hugo &")
        second.type(talk[0])
        wait_until(lambda: Device(folder, "hugo").ask("status")["settled"], "hugo's tail has synced")
        second.paste(talk[1:])
        assert second.paste(take("troupe sync outbox")).count("waiting") == 0
        shown = second.paste(take("troupe sync status"))
        assert stage.server.url in shown and "runs in another process" in shown, shown
        shown = second.paste(take("echo '{"))
        assert re.search(r"\[verified\] \S+ @gina:localhost: hello Bob\n", shown) and "and more from a pipe" in shown, shown
        assert open_text(os.path.join(folder, "downloads/note.json")) == '{"to": "Bob"}\n'
        assert second.paste(take("troupe sync tail --data hugo --since")) == "hello Bob\n"
        shown = second.paste(take("mv gina/key"))
        assert shown.count("notes") == 2, shown
        shown = second.paste(take("echo \"correct"))
        assert "sessions are in keys.txt" in shown and "new" in shown, shown
        shown = second.paste(take("troupe sync leave"))
        assert "Logged out" in shown and "hello Bob" in shown, shown
        assert not blocks and sorted(os.listdir(folder)) == ["build"], (blocks, os.listdir(folder))


@case
def a_device_that_logs_out_is_gone(stage):
    assert stage.ada.ask("logout")["loggedOut"]
    wait_until(lambda: stage.ada.device_id not in stage.bob.known_devices(stage.ada.user_id), "bob knows that it is gone")
    kept = stage.ada.run("rooms")
    assert stage.room in kept.stdout and "has ended for good" in kept.stderr, kept
    kept = stage.ada.run("tail", "--since", "0")
    assert "from bob 0" in kept.stdout and "has ended for good" in kept.stderr, kept.stderr
    assert "has ended for good" in stage.ada.run("members", stage.room, status=1).stderr
    assert stage.ada.ask("status")["state"] == "ENDED"


@case
def no_secret_is_ever_printed_or_stored_in_the_clear(stage):
    """Over all cases before: passwords, tokens that Synapse gave out, keys of data directories and of messages."""
    secrets = {matrix_homeserver.PASSWORD, "correct horse"}
    for table in ("access_tokens", "refresh_tokens", "login_tokens"):
        secrets.update(server_tokens(stage.server, "token", table))
    files = [os.path.join(found, name) for found, _, names in os.walk(stage.folder) for name in names]
    for path in files:
        if os.path.basename(path) == "key":
            with open(path, encoding="ascii") as file:
                secrets.add(file.read().strip())
    assert len(secrets) > 3, "the cases before gave out tokens"
    shown = "\n".join(SHOWN)
    assert "troupe sync: " in shown and not [secret for secret in secrets if secret in shown], shown
    stored = [path for path in files if os.path.basename(path).startswith("sync.db")]
    assert stored
    for path in stored:
        with open(path, "rb") as file:
            content = file.read()
        assert not [secret for secret in secrets if secret.encode() in content], path


# ---- the run --------------------------------------------------------------------------------------------------------

def run_cases(stage, wanted):
    passed = failed = skipped = 0
    needed = (a_room_is_made_by_commands, a_verification_that_ada_asks_for_ends_with_0)  # by all that follow
    for function in CASES:
        if wanted and function not in needed and not any(word in function.__name__ for word in wanted):
            continue
        started = time.monotonic()
        try:
            function(stage)
            passed += 1
            print(f"ok - {function.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
        except matrix_peers.Skip as reason:
            skipped += 1
            print(f"ok - {function.__name__} # SKIP {reason}", flush=True)
        except Exception as error:  # pylint: disable=broad-exception-caught  # it is the verdict
            failed += 1
            print(f"not ok - {function.__name__}: {type(error).__name__}: {error}", flush=True)
            if function in needed:
                break
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed


def main():
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    if not os.path.exists(PROGRAM):
        print(f"{os.path.relpath(PROGRAM, ROOT)} is not built")
        return 77
    try:
        with tempfile.TemporaryDirectory(prefix="troupe-sync-", dir=memory) as folder, \
                matrix_peers.homeserver(os.path.join(folder, "homeserver"), login_via_existing_session={
                    "enabled": True, "require_ui_auth": False}) as server:
            for user in ("ada", "bob"):
                server.register(user)
            with Peer("js", folder, "bob") as bob:
                failed = run_cases(Stage(server, folder, bob), sys.argv[1:])
    except matrix_peers.Skip as reason:
        print(reason)
        return 77
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
