#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe sync` with a homeserver that a script plays: what goes wrong is said, and nothing that comes from the network is
believed. test/matrix has the same program with a real homeserver."""
import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
# pylint: disable=wrong-import-position
import serving  # noqa: E402
from matrix_script import ADA, Device, Home, room_event  # noqa: E402

ROOM = "!room:script"
OTHER_UID = 65534


@contextlib.contextmanager
def stage(folder):
    """ada has logged in, and is in a room that is not encrypted."""
    with Home() as home:
        home.add_room(ROOM, "plain")
        ada = Device(folder, home)
        ada.login()
        yield home, ada


# ---- the directory --------------------------------------------------------------------------------------------------

def only_login_makes_the_directory(folder):
    with Home() as home:
        ada = Device(folder, home, "mistyped")
        for words in (("rooms",), ("status",), ("tail",), ("send", ROOM, "x"), ("verify", "--listen")):
            said = ada.run(*words, status=1).stderr
            assert "There is no directory" in said and "troupe sync login --data" in said, said
            assert not os.path.exists(ada.data)
        ada.login()
        assert os.stat(ada.data).st_mode & 0o777 == 0o700


def a_directory_that_others_can_write_is_refused(folder):
    with stage(folder) as (_, ada):
        for mode in (0o770, 0o707, 0o1777):
            os.chmod(ada.data, mode)
            said = ada.run("rooms", status=1).stderr
            assert f"Other users can write {ada.data}. Run `chmod 700" in said, said
        os.chmod(ada.data, 0o755)  # the files have the mode 600
        ada.run("rooms")


def a_directory_of_another_user_is_refused(folder):
    if os.geteuid() != 0:
        return "only root can give a directory away"
    with stage(folder) as (_, ada):
        os.chown(ada.data, OTHER_UID, -1)
        said = ada.run("rooms", status=1).stderr
        assert f"belongs to another user (uid {OTHER_UID})" in said, said
    return None


def a_socket_of_another_user_is_not_spoken_to(folder):
    if os.geteuid() != 0:
        return "only root can listen as another user"
    with stage(folder) as (_, ada), socket.socket(socket.AF_UNIX) as other, ada.start("tail") as holder:
        path = os.path.join(ada.data, "engine.socket")
        serving.wait_until(lambda: os.path.exists(path), "the tail serves")
        holder.send_signal(signal.SIGSTOP)  # it has the lock, and is silent
        os.unlink(path)
        other.bind(path)
        os.seteuid(OTHER_UID)  # the peer of a connection is the user who listened
        other.listen()
        os.seteuid(0)
        said = ada.run("rooms", status=1).stderr
        assert "A process of another user listens on" in said, said
    return None


def a_path_may_have_any_character(folder):
    with Home() as home:
        home.add_room(ROOM, "found")
        ada = Device(folder, home, "what?mode=no & 100% [x]#1")
        ada.login()
        assert "found" in ada.run("rooms").stdout
        assert os.path.exists(os.path.join(ada.data, "sync.db"))


# ---- the login ------------------------------------------------------------------------------------------------------

def a_limit_of_logins_is_said_and_waited_for(folder):
    limited = 429, {"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests", "retry_after_ms": 700}
    with Home() as home:
        ada = Device(folder, home)
        home.say("POST", "/login", limited, (200, {"user_id": ADA, "access_token": "token", "device_id": "ANOTHER"}))
        # Without a wait the second answer would come at once; it names a device that nobody asked for.
        said = ada.login(status=1).stderr
        assert "The homeserver limits logins; trying again in 1 s." in said, said
        assert "Its answer to /_matrix/client/v3/login is not as the Matrix specification has it." in said, said
        home.say("POST", "/login", (429, {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 900_000}))
        said = ada.login(status=1).stderr
        assert re.search(r"limits logins and asks to wait (899|900) seconds more\. Run the command again then\.", said), said
        assert "trying again" not in said, said


def a_bad_well_known_is_said(folder):
    with Home() as home:
        ada = Device(folder, home)
        for answer, sentence in (
                ((200, b"<html>"), "/.well-known/matrix/client holds no JSON (status 200)"),
                ((502, b"bad gateway"), "/.well-known/matrix/client fails (status 502)"),
                ((200, {}), "Its answer to /.well-known/matrix/client is not as the Matrix specification has it."),
                ((403, b"no"), "answers with status 403")):
            home.say("GET", "/.well-known", answer)
            said = ada.login(status=1).stderr
            assert sentence in said, (answer, said)
        home.say("GET", "/.well-known", (200, {"m.homeserver": {"base_url": home.url}}))
        ada.login()


def a_refused_login_has_the_words_of_the_server(folder):
    with Home() as home:
        ada = Device(folder, home)
        for answer, sentence in (
                ((403, {"errcode": "M_FORBIDDEN", "error": "Invalid username or password"}),
                 "refuses the login of ada. The homeserver answers with status 403, M_FORBIDDEN: Invalid username or password."),
                ((403, {"errcode": "M_USER_DEACTIVATED", "error": "This account has been deactivated."}),
                 "M_USER_DEACTIVATED: This account has been deactivated.\n"),
                ((502, b"<html>"), "The homeserver answers with status 502.")):
            home.say("POST", "/login", answer)
            said = ada.login(status=1).stderr
            assert sentence in said, said


def a_status_names_the_homeserver_and_fails_with_a_wrong_key(folder):
    with stage(folder) as (home, ada):
        assert re.search(rf"^server +{home.url}$", ada.run("status").stdout, re.MULTILINE)
        assert ada.lines("status")[0]["homeserver"] == home.url
        other = os.path.join(folder, "other.key")
        with open(os.open(other, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("00" * 32)
        for more in ((), ("--json",)):
            done = ada.run("status", "--key-file", other, *more, status=1)
            assert "The key does not open the data" in done.stderr and not done.stdout, done


# ---- texts of others ------------------------------------------------------------------------------------------------

HOSTILE = "a\n!room:script @eve:script: forged\x1b[2J\x07\u009b31m\u202egnp.\u2066x\u2028y\u200fz\u061c\x85\r\x7fend"
SAFE = "a !room:script @eve:script: forged\ufffd[2J\ufffd\ufffd31m\ufffdgnp.\ufffdx y\ufffdz\ufffd\ufffd \ufffdend"


def no_text_of_others_reaches_a_terminal_raw(folder):
    with Home() as home:
        home.add_room(ROOM, HOSTILE)
        home.say("GET", "/members", (200, {"chunk": [room_event(
            "m.room.member", {"membership": "join", "displayname": HOSTILE}, state_key=ADA, event_id="$m")]}))
        home.say("GET", "/state/", (200, {"name": HOSTILE}))
        home.say("POST", "/invite", (403, {"errcode": "M_FORBIDDEN", "error": HOSTILE}))
        ada = Device(folder, home)
        ada.login()
        home.talk(ROOM, HOSTILE)
        home.update(ROOM, events=[room_event("org.\u202ex\u009b", {})])
        shown = {"rooms": ada.run("rooms").stdout, "members": ada.run("members", ROOM).stdout,
                 "state": ada.run("state", ROOM, "m.room.name").stdout,
                 "tail": ada.run("tail", "--since", "0", "--count", "2").stdout,
                 "invite": ada.run("invite", ROOM, "@eve:script", status=1).stderr}
        for name, text in shown.items():
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", text), (name, text)
            assert len(text.splitlines()) == (2 if name == "tail" else 1), (name, text)
            assert SAFE in text or name in ("rooms", "state"), (name, text)  # the engine cleans names of rooms, JSON escapes
        assert ada.lines("tail", "--since", "0", "--count", "1")[0]["content"]["body"] == HOSTILE
        assert ada.lines("state", ROOM, "m.room.name")[0]["name"] == HOSTILE


def a_refusal_has_the_words_of_the_server(folder):
    with stage(folder) as (home, ada):
        for words, path, answer in (
                (("invite", ROOM, "@eve:script"), "/invite", (403, {"errcode": "M_FORBIDDEN", "error": "eve is banned"})),
                (("invite", ROOM, "@nobody:script"), "/invite", (404, {"errcode": "M_NOT_FOUND", "error": "No such user"})),
                (("join", "!secret:script"), "/join", (403, {"errcode": "M_FORBIDDEN", "error": "You are not invited."})),
                (("join", "!none:script"), "/join", (404, {"errcode": "M_NOT_FOUND", "error": "Can't join remote room"})),
                (("leave", ROOM), "/leave", (400, {"errcode": "M_BAD_STATE", "error": "Not now"})),
                (("create", "--name", "x"), "/createRoom", (400, {"errcode": "M_ROOM_IN_USE", "error": "Taken"}))):
            home.say("POST", path, answer)
            said = ada.run(*words, status=1).stderr
            reason = answer[1]["error"].rstrip(".") + ".\n"
            assert f"{words[0]}: The homeserver answers with status {answer[0]}, {answer[1]['errcode']}: {reason}" in said, said


def a_failed_invitation_leaves_a_room_whose_id_is_printed(folder):
    with stage(folder) as (home, ada):
        home.say("POST", "/invite", (403, {"errcode": "M_FORBIDDEN", "error": "eve is not there"}))
        done = ada.run("create", "--name", "x", "--invite", "@eve:script", status=1)
        assert re.fullmatch(r"!made\d+:script\n", done.stdout), done
        assert "eve is not there." in done.stderr and "was created, and @eve:script is not invited." in done.stderr, done.stderr
        assert done.stdout.strip() in ada.run("rooms").stdout
        assert ada.run("create", "--name", "y").stdout.startswith("!made")


# ---- messages -------------------------------------------------------------------------------------------------------

def sent_bodies(home):
    return [body.get("body") for method, path, body in home.asked if method == "PUT" and "/send/" in path]


def an_unencrypted_room_gets_no_message_by_mistake(folder):
    with stage(folder) as (home, ada):
        path = os.path.join(folder, "file.txt")
        with open(path, "w", encoding="ascii") as file:
            file.write("secret")
        for words in (("send", ROOM, "secret"), ("attach", ROOM, path)):
            said = ada.run(*words, status=1).stderr
            assert f"{words[0]}: The room {ROOM} is not encrypted" in said and "--unencrypted" in said, said
        assert ada.lines("status")[0]["unsent"] == 0 and not sent_bodies(home)
        ada.run("send", ROOM, "public", "--unencrypted")
        assert sent_bodies(home) == ["public"]
        home.add_room("!left:script", kind="leave")
        home.add_room("!invites:script", kind="invite")
        assert "not known here" in ada.run("send", "!none:script", "x", status=1).stderr
        serving.wait_until(lambda: "!left" in ada.run("rooms").stdout and "!invites" in ada.run("rooms").stdout, "rooms came")
        assert "have not joined it. Run `troupe sync join" in ada.run("send", "!invites:script", "x", status=1).stderr
        assert "not a member of !left:script any more" in ada.run("send", "!left:script", "x", status=1).stderr


def a_dash_reads_the_text_from_standard_input(folder):
    with stage(folder) as (home, ada):
        for text, body in (("hello\n", "hello"), ("two\nlines\n\n", "two\nlines\n"), ("no newline", "no newline"), ("-\n", "-")):
            ada.run("send", ROOM, "-", "--unencrypted", text=text)
            assert sent_bodies(home)[-1] == body, sent_bodies(home)
        assert "has no text" in ada.run("send", ROOM, "-", "--unencrypted", status=1).stderr
        assert "the most is 46000" in ada.run("send", ROOM, "-", "--unencrypted", text="x" * 200_000, status=1).stderr
        with subprocess.Popen(ada.command("send", ROOM, "-", "--unencrypted"), stdin=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            serving.wait_until(lambda: waits_in_poll(process.pid), "it reads")
            process.send_signal(signal.SIGINT)
            assert process.wait(serving.LIMIT_S) == 1 and b"Interrupted" in process.stderr.read()


def waits_in_poll(pid):
    """Whether the first thread of a process has blocked its signals and waits."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        text = file.read()
    return int(re.search(r"SigBlk:\s+([0-9a-f]+)", text).group(1), 16) & 2 and "State:\tS" in text


def encrypted(number):
    return room_event("m.room.encrypted", {"algorithm": "m.megolm.v1.aes-sha2", "session_id": f"s{number}", "sender_key": "k",
                                           "device_id": "D", "ciphertext": "AwgA"})


def events_come_by_their_numbers_with_those_that_cannot_be_read(folder):
    with stage(folder) as (home, ada):
        for start in range(0, 120, 20):  # more than one page of each kind, in runs
            home.update(ROOM, events=[encrypted(start + i) if (start // 20 + i) % 3 else room_event(
                "m.room.message", {"msgtype": "m.text", "body": str(start + i)}) for i in range(20)])
        home.talk(ROOM, "the last")
        with ada.start("tail", "--since", "0", "--json") as tail:
            shown = []
            while not shown or shown[-1].get("content", {}).get("body") != "the last":
                shown.append(json.loads(tail.stdout.readline()))
        numbers = [event["seq"] for event in shown]
        assert numbers == sorted(set(numbers)), numbers
        assert len([event for event in shown if "unread" in event]) == 80 and len(shown) == 121, len(shown)
        rest = ada.lines("tail", "--since", str(numbers[50]), "--count", "20")
        assert [event["seq"] for event in rest] == numbers[51:51 + len(rest)], rest


def events_without_a_key_are_shown_without_another_event(folder):
    with stage(folder) as (home, ada):
        home.update(ROOM, events=[encrypted(number) for number in range(130)])  # pages of them alone
        with ada.start("tail", "--since", "0", "--json") as tail:
            shown = [json.loads(tail.stdout.readline()) for _ in range(130)]
        assert [event["seq"] for event in shown] == list(range(1, 131)) and {event["unread"] for event in shown} == {"held"}


def after_a_logout_rooms_and_events_are_shown(folder):
    with stage(folder) as (home, ada):
        home.talk(ROOM, "received")
        ada.run("tail", "--since", "0", "--count", "1")
        ada.run("logout")
        for words, text in ((("rooms",), "plain"), (("tail",), "received"), (("tail", "--since", "0", "--count", "1"), "received")):
            done = ada.run(*words)
            assert text in done.stdout and "The login has ended for good" in done.stderr, done
        assert "ended for good" in ada.run("send", ROOM, "x", "--unencrypted", status=1).stderr


def an_unsent_message_is_listed_dropped_and_retried(folder):
    with stage(folder) as (home, ada):
        assert not ada.run("outbox").stdout
        home.say("PUT", "/send/", (403, {"errcode": "M_FORBIDDEN", "error": "You are muted"}))
        said = ada.run("send", ROOM, "muted", "--unencrypted", status=1).stderr
        assert "send: The event was refused: M_FORBIDDEN (HTTP 403): You are muted." in said, said
        row, = ada.lines("outbox")
        assert {"roomId": ROOM, "state": "failed", "share": "verified", "content": {"msgtype": "m.text", "body": "muted"}
                }.items() <= row.items() and "M_FORBIDDEN" in row["reason"], row
        shown = ada.run("outbox", "list").stdout
        assert re.fullmatch(rf"{row['txnId']} +failed +verified +{ROOM} +muted \(M_FORBIDDEN.*\)\n", shown), shown
        del home.answers[("PUT", "/send/")]
        assert ada.run("outbox", "retry", row["txnId"]).stdout.startswith("$event")
        assert not ada.run("outbox").stdout and sent_bodies(home) == ["muted", "muted"]
        for words in (("drop", row["txnId"]), ("retry", "m999")):
            assert "No unsent event has the id" in ada.run("outbox", *words, status=1).stderr
        assert "takes list, drop ID or retry ID, not 'dance'." in ada.run("outbox", "dance", status=2).stderr


def more_unsent_messages_than_a_page_are_listed(folder):
    with stage(folder) as (home, ada):
        home.say("PUT", "/send/", (403, {"errcode": "M_FORBIDDEN"}))
        with ada.tail(), socket.socket(socket.AF_UNIX) as engine:
            engine.connect(os.path.join(ada.data, "engine.socket"))
            lines = engine.makefile("rw")
            serving.wait_until(lambda: ada.lines("status")[0]["settled"], "the tail has synced")
            for number in range(120):
                print(json.dumps({"id": 1, "do": "send", "room": ROOM, "type": "m.room.message", "content": {
                    "body": str(number)}}), file=lines, flush=True)
                assert json.loads(lines.readline())["ok"]
            serving.wait_until(lambda: ada.lines("status")[0]["failed"] == 120, "all were refused")
            assert [row["content"]["body"] for row in ada.lines("outbox")] == [str(number) for number in range(120)]
            ada.run("outbox", "drop", ada.lines("outbox")[70]["txnId"])
            assert len(ada.lines("outbox")) == 119


# ---- attachments ----------------------------------------------------------------------------------------------------

def attachment(home, name, plain, packed=None, **more):
    """Puts an encrypted file on the server. Returns the content of its event."""
    key, nonce, number = os.urandom(32), os.urandom(8) + bytes(8), f"media{len(home.files)}"
    data = subprocess.run(["openssl", "enc", "-aes-256-ctr", "-K", key.hex(), "-iv", nonce.hex()], input=plain if packed is None
                          else packed, capture_output=True, check=True).stdout
    number = more.pop("media", number)
    home.files[number] = data

    def text(value, url=False):
        return (base64.urlsafe_b64encode if url else base64.b64encode)(value).decode().rstrip("=")
    return {"msgtype": "m.file", "body": name, "info": {"size": more.pop("size", len(plain))}, **more, "file": {
        "v": "v2", "url": f"mxc://script/{number}", "iv": text(nonce), "hashes": {"sha256": text(hashlib.sha256(data).digest())},
        "key": {"kty": "oct", "alg": "A256CTR", "ext": True, "key_ops": ["encrypt", "decrypt"], "k": text(key, True)}}}


def saved_in(path):
    return {name: os.path.getsize(os.path.join(path, name)) for name in os.listdir(path)} if os.path.exists(path) else {}


def a_file_that_grows_over_its_limit_is_not_saved(folder):
    large = bytes(80 << 20)
    with stage(folder) as (home, ada):
        saved, number = os.path.join(folder, "saved"), 0
        for content, more, sentence in (
                (attachment(home, "lies.json.gz", b"", gzip.compress(large), size=10, **{"org.troupe.encoding": "gzip"}), (),
                 "more than the 10 bytes that its event says"),
                (attachment(home, "silent.json.gz", b"", gzip.compress(large), size=0, **{"org.troupe.encoding": "gzip"}), (),
                 f"more than {64 << 20} bytes. --save-max BYTES"),
                (attachment(home, "lotti.json.gz", b"", gzip.compress(large), size=10, **{"com.lotti.encoding": "gzip"}), (),
                 f"more than {64 << 20} bytes. --save-max BYTES"),
                (attachment(home, "small.bin", large[:200_000], size=10), (), "more than the 10 bytes"),
                (attachment(home, "large.bin", large[:3_000_000]), ("--save-max", "1000000"), "more than 1000000 bytes")):
            home.talk(ROOM, content)
            done = ada.run("tail", "--json", "--since", str(number), "--count", "1", "--save", saved, *more, status=1)
            number = json.loads(done.stdout)["seq"]
            assert sentence in done.stderr and not saved_in(saved), (done.stderr, saved_in(saved))
        home.talk(ROOM, attachment(home, "right.json.gz", large, gzip.compress(large), **{"org.troupe.encoding": "gzip"}),
                  attachment(home, "lotti.json.gz", b"", gzip.compress(large[:5000]), size=30, **{"com.lotti.encoding": "gzip"}),
                  attachment(home, "none.bin", b""), attachment(home, "plain.bin", large[:100_000]))
        ada.run("tail", "--since", str(number), "--count", "4", "--save", saved)
        assert saved_in(saved) == {"right.json": 80 << 20, "lotti.json": 5000, "none.bin": 0, "plain.bin": 100_000}, saved_in(saved)


def names_of_any_length_are_saved(folder):
    with stage(folder) as (home, ada):
        saved, names = os.path.join(folder, "saved"), ["n" * 251 + ".txt", "é" * 127 + "n", "n" * 251 + ".txt", "o" * 255]
        for number, name in enumerate(names):
            home.talk(ROOM, attachment(home, name, b"text", media=f"{number}" + "i" * 254))
        ada.run("tail", "--since", "0", "--count", "4", "--save", saved)
        found = saved_in(saved)
        assert len(found) == 4 and set(found.values()) == {4}, found
        assert len([name for name in found if name.endswith("n.txt")]) == 2 and all(len(os.fsencode(name)) <= 255 for name in found)
        path = os.path.join(folder, "n" * 250 + ".json")
        with open(path, "w", encoding="ascii") as file:
            file.write("{}")
        home.say("POST", "/upload", (200, {"content_uri": "mxc://script/up"}))
        ada.run("attach", ROOM, path, "--unencrypted")
        assert sent_bodies(home)[-1].endswith("n.json.gz") and len(sent_bodies(home)[-1]) == 255


def a_save_that_fails_makes_the_exit_status_1(folder):
    with stage(folder) as (home, ada):
        saved = os.path.join(folder, "saved")
        content = attachment(home, "gone.bin", b"text")
        home.files.clear()
        home.talk(ROOM, content, "after it")
        done = ada.run("tail", "--since", "0", "--count", "2", "--save", saved, status=1)
        assert "after it" in done.stdout and "was not saved: The homeserver answers with status 404, M_NOT_FOUND" in done.stderr, done
        home.talk(ROOM, attachment(home, "here.bin", b"text"))
        nowhere = os.path.join(ada.password, "below-a-file")
        done = ada.run("tail", "--since", "2", "--count", "1", "--save", nowhere, status=1)
        assert f"was not saved: {nowhere} cannot be written: Not a directory." in done.stderr, done


def a_signal_ends_a_tail_that_saves(folder):
    begun, ends = threading.Event(), threading.Event()

    def half(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(bytes(1000))
        handler.wfile.flush()
        begun.set()
        ends.wait()
    with stage(folder) as (home, ada):
        content = attachment(home, "slow.bin", bytes(1_000_000))
        home.say("GET", "/media/download", (200, half))
        home.talk(ROOM, content)
        try:
            with ada.start("tail", "--since", "0", "--save", os.path.join(folder, "saved")) as tail:
                assert begun.wait(serving.LIMIT_S)
                tail.send_signal(signal.SIGINT)
                assert tail.wait(serving.LIMIT_S) == 1
                assert "was not saved: Interrupted." in tail.stderr.read()
        finally:
            ends.set()


# ---- one engine -----------------------------------------------------------------------------------------------------

def a_wait_for_another_command_says_so_and_ends_by_a_signal(folder):
    with stage(folder) as (home, ada):
        begun, ends = threading.Event(), threading.Event()

        def slow(handler):
            begun.set()
            ends.wait()
            handler.close_connection = True
        home.say("POST", "/createRoom", (200, slow))
        try:
            with ada.start("create", "--name", "slow") as first, contextlib.ExitStack() as stack:
                assert begun.wait(serving.LIMIT_S)
                second = stack.enter_context(ada.start("rooms"))
                said = second.stderr.readline()
                assert f"Another command works on {ada.data}; waiting for its end." in said, said
                second.send_signal(signal.SIGINT)
                assert second.wait(serving.LIMIT_S) == 1
                assert "Interrupted" in second.stderr.read()
                first.kill()
        finally:
            ends.set()


def a_connection_over_the_limit_is_told_so(folder):
    with stage(folder) as (_, ada), ada.tail(), contextlib.ExitStack() as stack:
        for _ in range(31):  # the tail itself has one
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(os.path.join(ada.data, "engine.socket"))
        said = ada.run("rooms", status=1).stderr
        assert "The engine has too many requests: it serves 32 commands at once. Try again soon." in said, said
        stack.pop_all().close()
        serving.wait_until(lambda: subprocess.run(ada.command("rooms"), capture_output=True, check=False).returncode == 0,
                           "places are free again")


if __name__ == "__main__":
    sys.exit(serving.run_cases([function for name, function in list(globals().items())
                                if getattr(function, "__module__", None) == "__main__" and
                                getattr(function, "__code__", None) and function.__code__.co_varnames[:1] == ("folder",) and
                                name != "stage"]))
