#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Our Matrix engine talks with matrix-js-sdk, with matrix-nio and with itself through a Synapse. With TROUPE_LONG=1 the two
others also talk without it. Parts of cases' names on the command line choose some."""
import hashlib
import os
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
# pylint: disable=wrong-import-position,import-error
import matrix_peers
from matrix_peers import Peer, matrix_homeserver
from serving import LONG, wait_until

MESSAGES = 20
MESSAGES_MANY = 200  # more than a Megolm session has by default
SIZES = (0, 1, 10_000_000)
SOFT_LOGOUTS_S = 60
LIMITS_S = 20
KINDS = (("troupe", "js"), ("js", "troupe"), ("troupe", "nio"), ("nio", "troupe"), ("troupe", "troupe"))
KINDS_LONG = (("js", "nio"), ("nio", "js"), ("js", "js"), ("nio", "nio"))
CASES = []


def case(function, **about):
    """`kind` must be in the pair."""
    function.kind = about.get("kind")
    CASES.append(function)
    return function


def case_of(**about):
    return lambda function: case(function, **about)


class Pair:
    """ada and bob, each by a client of some kind, in an encrypted room that ada makes."""

    def __init__(self, server, folder, ada, bob):
        self.server, self.folder, self.ada, self.bob = server, folder, ada, bob
        self.room = None

    @property
    def directions(self):
        return ((self.ada, self.bob), (self.bob, self.ada))


def talk(sender, reader, room, text):
    sent = sender.call("send", roomId=room, text=text)
    message = reader.wait("message", roomId=room, eventId=sent["eventId"])
    assert message["content"]["body"] == text and message["encrypted"], message
    return sent


@case
def both_log_in_and_meet_in_an_encrypted_room(pair):
    for peer, user in ((pair.ada, "ada"), (pair.bob, "bob")):
        assert peer.login(pair.server, user)["userId"] == f"@{user}:localhost"
    pair.room = pair.ada.call("create_room", name="harness")["roomId"]
    pair.ada.call("invite", roomId=pair.room, userId=pair.bob.user_id)
    pair.bob.wait("member", roomId=pair.room, userId=pair.bob.user_id, membership="invite")
    pair.bob.call("join", roomId=pair.room)
    pair.ada.wait("member", roomId=pair.room, userId=pair.bob.user_id, membership="join")


@case
def each_reads_the_others_messages_in_order(pair):
    is_many = pair.ada.kind == "troupe" or (LONG and pair.bob.kind == "troupe")
    for number in range(MESSAGES_MANY if is_many else MESSAGES):
        for sender, reader in pair.directions:
            talk(sender, reader, pair.room, f"{number} from {sender.name}")


@case
def messages_that_are_sent_at_once_all_arrive(pair):
    begun = [(peer, peer.begin("send", roomId=pair.room, text=f"burst {number}"))
             for number in range(MESSAGES) for peer in (pair.ada, pair.bob)]
    for peer, call in begun:
        peer.end(call)
    for sender, reader in pair.directions:
        read = {reader.wait("message", sender=sender.user_id)["content"]["body"] for _ in range(MESSAGES)}
        assert read == {f"burst {number}" for number in range(MESSAGES)}, read


def show_sas(first, second, **more):
    """Both see the same numbers; returns the transaction."""
    transaction = first.call("verify", userId=second.user_id, deviceId=second.device_id, **more)["transactionId"]
    asked = second.wait("verification_request", transactionId=transaction)
    assert (asked["userId"], asked["deviceId"]) == (first.user_id, first.device_id), asked
    second.call("accept", transactionId=transaction)
    shown = [peer.wait("sas", transactionId=transaction) for peer in (first, second)]
    assert shown[0]["decimals"] == shown[1]["decimals"] and len(shown[0]["decimals"]) == 3, shown
    assert shown[0]["emoji"] == shown[1]["emoji"] and len(shown[0]["emoji"]) == 7, shown
    return transaction


def cancel_by(command, first, second, code):
    transaction = show_sas(first, second)
    first.call(command, transactionId=transaction)
    for peer in (first, second):
        assert peer.wait("cancelled", transactionId=transaction)["code"] == code
    assert not first.has_verified(second) and not second.has_verified(first)


@case
def a_verification_that_one_cancels_verifies_nobody(pair):
    for first, second in pair.directions:
        cancel_by("cancel", first, second, "m.user")


@case
def numbers_that_differ_verify_nobody(pair):
    for first, second in pair.directions:
        cancel_by("mismatch", first, second, "m.mismatched_sas")


def verify(first, second, **more):
    """Returns the last event of each."""
    transaction = show_sas(first, second, **more)
    for peer in (first, second):
        peer.call("confirm", transactionId=transaction)
    ends = {peer.name: peer.wait("verified", transactionId=transaction) for peer in (first, second)}
    assert first.has_verified(second) and second.has_verified(first)
    return ends


@case
def each_verifies_the_other(pair):
    for first, second in pair.directions:
        verify(first, second)


@case_of(kind="js")
def devices_of_one_user_verify_each_other(pair):
    for peer, user in ((pair.ada, "ada"), (pair.bob, "bob")):
        if peer.kind == "js":
            continue
        with Peer("js", pair.folder, f"{user}-other") as other:
            other.login(pair.server, user)
            assert other.user_id == peer.user_id and other.device_id != peer.device_id
            for first, second in ((peer, other), (other, peer)):
                verify(first, second)
            other.call("logout")
        wait_until(lambda: other.device_id not in peer.known_devices(peer.user_id),  # pylint: disable=cell-var-from-loop
                   "the device is gone")


@case_of(kind="js")
def cross_signing_is_read_and_its_master_key_verified(pair):
    """The js peer has keys of cross-signing, and sends a MAC of its master key. Its second device is signed and not verified."""
    for peer in (pair.ada, pair.bob):
        if peer.kind != "troupe":
            continue
        user = f"carol-{pair.ada.kind}-{pair.bob.kind}"
        pair.server.register(user)
        with Peer("js", pair.folder, "carol") as carol:
            carol.login(pair.server, user)
            peer.call("invite", roomId=pair.room, userId=carol.user_id)
            carol.wait("member", roomId=pair.room, userId=carol.user_id, membership="invite")
            carol.call("join", roomId=pair.room)
            peer.wait("member", roomId=pair.room, userId=carol.user_id, membership="join")
            assert not peer.known_devices(carol.user_id)[carol.device_id]["crossSigned"]
            carol.call("cross_sign", password=matrix_homeserver.PASSWORD)
            wait_until(lambda: peer.known_devices(carol.user_id)[carol.device_id]["crossSigned"],  # pylint: disable=cell-var-from-loop
                       "the signature is seen")
            assert not peer.has_verified(carol), "a signature is no verification"
            for first, second in ((peer, carol), (carol, peer)):
                assert verify(first, second)[peer.name]["master"], "the MAC of the master key was not checked"
            carol.call("leave", roomId=pair.room)
            peer.wait("member", roomId=pair.room, userId=carol.user_id, membership="leave")
            carol.call("logout")


@case_of(kind="nio")
def nio_verifies_as_before_there_were_requests(pair):
    for first, second in pair.directions:
        if first.kind == "nio":
            verify(first, second, legacy=True)


@case
def attachments_arrive_whole(pair):
    for sender, reader in pair.directions:
        for size in SIZES:
            path = os.path.join(pair.folder, "file")
            data = os.urandom(size)
            with open(path, "wb") as file:
                file.write(data)
            sender.call("attach", roomId=pair.room, path=path, name=f"{size}.bin")
            message = reader.wait("message", roomId=pair.room, sender=sender.user_id)
            got = reader.call("download", content=message["content"])
            assert got["size"] == size and got["sha256"] == hashlib.sha256(data).hexdigest(), (size, got)


@case
def a_rotated_session_is_read(pair):
    for sender, reader in pair.directions:
        sender.call("rotate", roomId=pair.room)
        talk(sender, reader, pair.room, "after the rotation")


@case_of(kind="troupe")
def a_client_that_restarts_goes_on(pair):
    for sender, reader in pair.directions:
        for peer in (sender, reader):
            if peer.kind == "troupe":
                peer.call("restart")
                talk(sender, reader, pair.room, f"after a restart of {peer.name}")


def wait_for_answer_to(sender, reader, room, text):
    """Messages, each with a new room key, until the reader can read one. Those before have lost their key."""
    for number in range(20):
        sender.call("rotate", roomId=room)
        event_id = sender.call("send", roomId=room, text=f"{text} {number}")["eventId"]
        got = reader.wait_any(("message", "undecryptable"), eventId=event_id)
        if got["event"] == "message":
            return number
    raise AssertionError("no message became readable")


HOURS_2 = 2 * 3600 * 1000  # no client replaces a session twice in an hour


@case_of(kind="troupe")
def a_session_that_the_reader_lost_is_replaced(pair):
    for sender, reader in pair.directions:
        if reader.kind == "troupe":
            before = reader.call("counts")["undecrypted"]
            reader.call("pass_time", ms=HOURS_2)
            reader.call("forget")
            assert wait_for_answer_to(sender, reader, pair.room, "lost") > 0
            assert reader.call("counts")["undecrypted"] > before


@case_of(kind="troupe")
def a_session_that_the_reader_cannot_read_is_replaced(pair):
    """matrix-js-sdk 37.5.0 claims a key for the new session, but its dummy message never leaves."""
    for sender, reader in pair.directions:
        if sender.kind == "troupe" and reader.kind != "js":
            reader.call("pass_time", ms=HOURS_2)
            sender.call("wedge", userId=reader.user_id, deviceId=reader.device_id)
            assert wait_for_answer_to(sender, reader, pair.room, "wedged") > 0


@case_of(kind="troupe")
def a_member_who_left_gets_another_session(pair):
    for sender, reader in pair.directions:
        if sender.kind != "troupe":
            continue
        former = talk(sender, reader, pair.room, "before the leave")["sessionId"]
        sender.drop("member")
        reader.call("leave", roomId=pair.room)
        sender.wait("member", roomId=pair.room, userId=reader.user_id, membership="leave")
        sent = sender.call("send", roomId=pair.room, text="without the other")
        assert sent["sessionId"] != former
        sender.call("invite", roomId=pair.room, userId=reader.user_id)
        reader.call("join", roomId=pair.room)
        sender.wait("member", roomId=pair.room, userId=reader.user_id, membership="join")
        talk(sender, reader, pair.room, "after the return")
        assert not [said for said in reader.events if said["event"] == "message" and said["eventId"] == sent["eventId"]]


@case_of(kind="troupe")
def four_devices_of_two_users_read_each_message(pair):
    with Peer("troupe", pair.folder, "ada-second") as ada, Peer("js", pair.folder, "bob-second") as bob:
        ada.login(pair.server, "ada")
        bob.login(pair.server, "bob")
        devices = (pair.ada, pair.bob, ada, bob)
        for peer in devices:
            for other in devices:
                wait_until(lambda peer=peer, other=other: peer is other or other.device_id in peer.known_devices(other.user_id),
                           f"{peer.name} knows {other.name}")
        for sender in devices:
            sent = sender.call("send", roomId=pair.room, text=f"from {sender.name}")
            for reader in devices:
                if reader is not sender:
                    message = reader.wait("message", roomId=pair.room, eventId=sent["eventId"])
                    assert message["content"]["body"] == f"from {sender.name}", message
        for peer in (ada, bob):
            peer.call("logout")
    for former in (ada, bob):
        for peer in (pair.ada, pair.bob):
            wait_until(lambda peer=peer, former=former: former.device_id not in peer.known_devices(former.user_id),
                       f"{peer.name} knows that {former.name} is gone")


@case
def a_device_that_comes_later_reads_what_follows(pair):
    with Peer("js", pair.folder, "bob-later") as later:
        later.login(pair.server, "bob")
        wait_until(lambda: later.device_id in pair.ada.known_devices(later.user_id), "ada knows the device")
        talk(pair.ada, pair.bob, pair.room, "to three devices")
        assert later.wait("message", roomId=pair.room)["content"]["body"] == "to three devices"
        later.wait("undecryptable", roomId=pair.room, sender=pair.bob.user_id)
        sent = pair.ada.call("send", roomId=pair.room, text="the last to three devices")
        later.call("logout")
    wait_until(lambda: later.device_id not in pair.ada.known_devices(later.user_id), "ada knows that the device is gone")
    if pair.ada.kind == "troupe":
        assert pair.ada.call("send", roomId=pair.room, text="to two devices")["sessionId"] != sent["sessionId"]


@case
def a_device_that_logs_out_is_gone(pair):
    pair.bob.call("logout")
    wait_until(lambda: pair.bob.device_id not in pair.ada.known_devices(pair.bob.user_id), "ada knows that it is gone")
    pair.ada.call("logout")


# ---- one server with limits -----------------------------------------------------------------------------------------

def troupe_lives_with_limits_and_short_tokens(folder):
    """Tokens live for 2 s and each third message is refused for a while: every message arrives once, in order. The engine
    refreshes each token before it ends, so no soft logout comes here: troupe_logs_in_again_after_soft_logouts has them."""
    with matrix_peers.homeserver(os.path.join(folder, "short"), rc_message={"per_second": 2, "burst_count": 3},
                                 refreshable_access_token_lifetime="2s") as server, \
            Peer("troupe", folder, "ada-short") as ada, Peer("js", folder, "bob-short") as bob:
        for user in ("ada", "bob"):
            server.register(user)
        pair = Pair(server, folder, ada, bob)
        both_log_in_and_meet_in_an_encrypted_room(pair)
        deadline, number = time.monotonic() + LIMITS_S, 0
        while time.monotonic() < deadline:
            for _ in range(5):
                talk(ada, bob, pair.room, f"message {number}")
                number += 1
            ada.wait("refreshed")
        talk(bob, ada, pair.room, "the end")
        assert not [said for said in bob.events if said["event"] in ("message", "undecryptable")], bob.events
        assert not [said for said in ada.events if said["event"] == "logged_out"], ada.events
        assert [said for said in ada.events if said["event"] == "limited"], "the server limited nothing"


def troupe_logs_in_again_after_soft_logouts(folder):
    """The server ends each login after 2 s and refuses to refresh its token. The device and its keys stay."""
    with matrix_peers.homeserver(os.path.join(folder, "soft"), session_lifetime="2s", refresh_token_lifetime="2s",
                                 refreshable_access_token_lifetime="2s") as server, \
            Peer("troupe", folder, "ada-soft") as ada, Peer("troupe", folder, "bob-soft") as bob:
        for user in ("ada", "bob"):
            server.register(user)
        pair = Pair(server, folder, ada, bob)
        both_log_in_and_meet_in_an_encrypted_room(pair)
        devices = ada.device_id, bob.device_id
        deadline, number = time.monotonic() + SOFT_LOGOUTS_S, 0
        while time.monotonic() < deadline:
            for sender, reader in pair.directions:
                talk(sender, reader, pair.room, f"message {number}")
            number += 1
        for peer in (ada, bob):
            for said in ("token_refused", "logged_out"):
                logouts = [found["soft"] for found in peer.events if found["event"] == said]
                assert all(logouts) and len(logouts) > SOFT_LOGOUTS_S / 5, (peer.name, said, logouts)
        assert devices == tuple(peer.call("counts")["deviceId"] for peer in (ada, bob))


def limits_and_short_tokens_are_real(folder):
    with matrix_peers.homeserver(os.path.join(folder, "limited"), rc_message={"per_second": 1, "burst_count": 3},
                                 refreshable_access_token_lifetime="2s") as server, Peer("js", folder, "bob") as bob:
        for user in ("ada", "bob"):
            server.register(user)
        bob.login(server, "bob", refresh=True)
        _, login = server.ask("POST", "/_matrix/client/v3/login", {
            "type": "m.login.password", "identifier": {"type": "m.id.user", "user": "ada"},
            "password": matrix_homeserver.PASSWORD, "refresh_token": True})

        def ask(method, path, body=None, token=login["access_token"]):
            return server.ask(method, "/_matrix/client/v3/" + path, body, token)
        _, room = ask("POST", "createRoom", {})
        sent = [ask("PUT", f"rooms/{room['room_id']}/send/m.room.message/{number}", {"msgtype": "m.text", "body": "x"})
                for number in range(5)]
        assert {status for status, _ in sent} == {200, 429}, sent
        assert all(answer["retry_after_ms"] > 0 for status, answer in sent if status == 429), sent
        wait_until(lambda: ask("GET", "account/whoami")[0] == 401, "the token has expired")
        assert ask("GET", "account/whoami")[1]["soft_logout"]
        status, fresh = ask("POST", "refresh", {"refresh_token": login["refresh_token"]})
        assert status == 200 and ask("GET", "account/whoami", token=fresh["access_token"])[0] == 200
        bob.call("create_room", name="with a token that has expired")
        bob.wait("refreshed")


# ---- the run --------------------------------------------------------------------------------------------------------

class Verdicts:
    def __init__(self, wanted):
        self.wanted, self.passed, self.failed, self.skipped = wanted, 0, 0, 0
        self.lock = threading.Lock()  # of the counts and the output: servers of their own run beside the pairs

    def wants(self, name):
        return not self.wanted or any(word in name for word in self.wanted)

    def run(self, function, subject, about):
        """True if it held, or was not wanted."""
        name, started = f"{about}: {function.__name__}", time.monotonic()
        if not self.wants(name) and function is not CASES[0]:
            return True
        try:
            function(subject)
        except matrix_peers.Skip as reason:
            self.skip(name, reason)
            return False
        except Exception as error:  # pylint: disable=broad-exception-caught  # it is the verdict
            with self.lock:
                self.failed += 1
                print(f"not ok - {name}: {type(error).__name__}: {error}", flush=True)
            return False
        with self.lock:
            self.passed += 1
            print(f"ok - {name} ({time.monotonic() - started:.1f} s)", flush=True)
        return True

    def skip(self, about, reason):
        with self.lock:
            self.skipped += 1
            print(f"ok - {about} # SKIP {reason}", flush=True)

    def run_pair(self, server, folder, kinds):
        """In order: the first case makes the room. If it fails, the others cannot run."""
        about = " and ".join(kinds)
        cases = [function for function in CASES if function.kind in (None, *kinds)]
        if not any(self.wants(f"{about}: {function.__name__}") for function in cases):
            return
        try:
            with tempfile.TemporaryDirectory(dir=folder) as place, \
                    Peer(kinds[0], place, "ada") as ada, Peer(kinds[1], place, "bob") as bob:
                pair = Pair(server, place, ada, bob)
                if self.run(cases[0], pair, about):
                    for function in cases[1:]:
                        self.run(function, pair, about)
        except matrix_peers.Skip as reason:
            self.skip(about, reason)

    def run_limits(self, folder):
        """Servers that refuse much, each of a case's own."""
        if LONG:
            self.run(limits_and_short_tokens_are_real, folder, "js alone")
        self.run(troupe_lives_with_limits_and_short_tokens, folder, "troupe")
        self.run(troupe_logs_in_again_after_soft_logouts, folder, "troupe")

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed else 0


def main():
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # Synapse's SQLite waits for a disk most of the time
    verdicts = Verdicts(sys.argv[1:])
    try:
        with tempfile.TemporaryDirectory(prefix="troupe-matrix-", dir=memory) as folder, \
                matrix_peers.homeserver(os.path.join(folder, "homeserver")) as server:
            for user in ("ada", "bob"):
                server.register(user)
            limits = threading.Thread(target=verdicts.run_limits, args=(folder,))
            limits.start()
            for kinds in KINDS + (KINDS_LONG if LONG else ()):
                verdicts.run_pair(server, folder, kinds)
            limits.join()
    except matrix_peers.Skip as reason:
        print(reason)
        return 77
    return verdicts.end()


if __name__ == "__main__":
    sys.exit(main())
