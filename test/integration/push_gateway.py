#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Devices are woken through a push gateway: a real server, and a gateway that keeps what it is told and answers what it
is told to."""
import base64
import collections
import contextlib
import http.server
import json
import os
import sqlite3
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import serving  # noqa: E402  # pylint: disable=wrong-import-position
import talking  # noqa: E402  # pylint: disable=wrong-import-position

SENT, FAILED, FORGOTTEN = (f"troupe_delivery_push_{what}_total" for what in ("sent", "failed", "forgotten"))


class Gateway:
    """Knows what it was posted, by token; answers 200, or of a token what `answers` has for it, one after the other;
    None: nothing, until it ends."""

    def __init__(self):
        self.lock = threading.Lock()
        self.posts = collections.defaultdict(list)
        self.answers = collections.defaultdict(list)
        self.is_ending = threading.Event()
        gateway = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # pylint: disable=invalid-name  # http.server's
                body = self.rfile.read(int(self.headers["Content-Length"]))
                token = json.loads(body)["token"]
                with gateway.lock:
                    gateway.posts[token].append((self.path, self.headers["Content-Type"], body.decode()))
                    status = gateway.answers[token].pop(0) if gateway.answers[token] else 200
                if status is None:
                    gateway.is_ending.wait()
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):  # pylint: disable=arguments-differ  # it says nothing
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}/wake"

    def count(self, token):
        with self.lock:
            return len(self.posts[token])

    def wait(self, token, count):
        serving.wait_until(lambda: self.count(token) >= count, f"{token} is woken {count} times")

    def end(self):
        self.is_ending.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Stage(talking.Talk):
    """A server with the gateway, and a conversation of ada, ben and cay."""

    def __init__(self, folder, *arguments, private="on"):
        super().__init__(folder)
        self.gateway = Gateway()
        self.arguments = ("--dev", "--set", f"delivery.push_url={self.gateway.url}", "--set",
                          "delivery.push_interval=100ms", "--set", f"delivery.push_allow_private={private}", *arguments)
        self.server = serving.Server(folder, *self.arguments)
        self.make(self.server)

    def leave_token(self, person, token):
        key = base64.b64encode(person.encode().ljust(32, b"k")).decode()
        for name, body in (("registerDevice", {"deviceName": "a phone", "deviceUUID": "phone", "keyPackages": [],
                                               "signaturePublicKey": key}),
                           ("registerDeviceToken", {"deviceId": "phone", "pushToken": token, "platform": "android"})):
            status, answer = self.ask(self.server, None, person, name, body)
            assert status == 200, (status, answer)

    def speak(self, person):
        message = f"message-{next(self.numbers)}"
        self.open[message] = person
        assert self.say(self.server, None, message)

    def end(self):
        self.server.end()
        log = self.server.log()
        assert "token-of-" not in log and self.gateway.url not in log, log
        self.gateway.end()


def others_are_woken_and_the_gateway_learns_nothing_of_what_was_said(folder, *arguments):
    stage = Stage(folder, *arguments)
    stage.leave_token("ada", "token-of-ada")
    stage.leave_token("ben", "token-of-ben")
    stage.speak("ada")
    stage.gateway.wait("token-of-ben", 1)
    stage.speak("ben")
    stage.gateway.wait("token-of-ada", 1)
    assert stage.gateway.count("token-of-ben") == 1, "who speaks is woken"
    path, kind, body = stage.gateway.posts["token-of-ben"][0]
    assert (path, kind) == ("/wake", "application/json"), (path, kind)
    assert json.loads(body) == {"token": "token-of-ben", "platform": "android", "deviceId": "phone"}, body
    serving.wait_until(lambda: stage.server.metric(SENT) == 2, "both are counted")
    stage.end()


def a_token_that_is_gone_is_never_used_again(folder, *arguments):
    stage = Stage(folder, *arguments)
    stage.leave_token("ben", "token-of-ben")
    stage.leave_token("cay", "token-of-cay")
    stage.gateway.answers["token-of-ben"] = [410]
    stage.speak("ada")
    serving.wait_until(lambda: stage.server.metric(FORGOTTEN) == 1, "the token is deleted")
    for count in (2, 3):
        stage.gateway.wait("token-of-cay", count - 1)
        stage.speak("ada")
        stage.gateway.wait("token-of-cay", count)
    assert stage.gateway.count("token-of-ben") == 1
    stage.leave_token("ben", "token-of-ben-two")
    stage.speak("ada")
    stage.gateway.wait("token-of-ben-two", 1)
    stage.end()


def a_gateway_in_trouble_is_tried_three_times(folder, *arguments):
    stage = Stage(folder, *arguments)
    stage.leave_token("ben", "token-of-ben")
    stage.gateway.answers["token-of-ben"] = [500, 503]
    stage.speak("ada")
    serving.wait_until(lambda: stage.server.metric(SENT) == 1, "the third try is taken")
    assert stage.gateway.count("token-of-ben") == 3 and stage.server.metric(FAILED) == 0
    stage.gateway.answers["token-of-ben"] = [500] * 100
    stage.speak("ada")
    serving.wait_until(lambda: stage.server.metric(FAILED) == 1, "it is given up")
    assert stage.gateway.count("token-of-ben") == 6
    stage.end()


def a_gateway_on_a_private_address_is_not_spoken_to_unless_it_is_allowed(folder):
    stage = Stage(folder, private="off")
    stage.leave_token("ben", "token-of-ben")
    stage.speak("ada")
    serving.wait_until(lambda: stage.server.metric(FAILED) == 1, "it is refused")
    assert stage.gateway.count("token-of-ben") == 0
    stage.end()


def a_server_that_ends_waits_for_no_gateway(folder):
    stage = Stage(folder)
    stage.leave_token("ben", "token-of-ben")
    stage.gateway.answers["token-of-ben"] = [None]
    stage.speak("ada")
    stage.gateway.wait("token-of-ben", 1)
    stage.end()
    assert "level=warn" not in stage.server.log(), "what had to be given up after a while"


def nobody_is_behind_too_many_others_to_be_woken(folder):
    """More tokens than are read at once, all but one of whoever comes first."""
    stage = Stage(folder)
    first, last = sorted(("ben", "cay"), key=lambda person: talking.did_of(stage.token(person, "getUnread")))
    stage.leave_token(last, "token-of-the-last")
    stage.server.end()
    with contextlib.closing(sqlite3.connect(os.path.join(stage.server.data, "troupe.db"))) as database, database:
        database.executemany(
            "INSERT INTO push_tokens (did, device, platform, token, changed_ms) VALUES (?, ?, 0, ?, 0)",
            [(talking.did_of(stage.token(first, "getUnread")), f"device-{i}", f"token-of-device-{i}") for i in range(4500)])
    stage.server = serving.Server(folder, *stage.arguments)
    stage.speak("ada")
    stage.gateway.wait("token-of-the-last", 1)
    stage.end()


def without_a_gateway_no_token_is_taken(folder):
    server = serving.Server(folder, "--dev")
    status, answer = serving.call(server, folder, "registerDeviceToken",
                                  {"deviceId": "phone", "pushToken": "token", "platform": "ios"})
    assert (status, answer["error"]) == (501, "PushNotConfigured"), (status, answer)
    server.end()


if __name__ == "__main__":
    sys.exit(serving.run_cases([
        *serving.on_both(others_are_woken_and_the_gateway_learns_nothing_of_what_was_said,
                         a_token_that_is_gone_is_never_used_again, a_gateway_in_trouble_is_tried_three_times),
        a_gateway_on_a_private_address_is_not_spoken_to_unless_it_is_allowed,
        a_server_that_ends_waits_for_no_gateway, nobody_is_behind_too_many_others_to_be_woken,
        without_a_gateway_no_token_is_taken]))
