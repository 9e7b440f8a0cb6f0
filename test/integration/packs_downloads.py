#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Downloads under way, as an administrator sees them: listed with what was sent, cut off by DELETE, and no more of one
user at once than they may have."""
import http.client
import json
import os
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import packing
import serving
from provider import Provider

SIZE = 32 << 20
SLOW = ("--set", "packs.rate_max=1MiB")


class Download:
    """One that was begun: its answer's head has come, and not all of its bytes."""

    def __init__(self, server, headers=None):
        self.connection = http.client.HTTPConnection(server.public, timeout=serving.LIMIT_S)
        self.connection.request("GET", "/v1/packs/core/download", headers=headers or {})
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def take(self):
        """What comes until it is over or cut."""
        got = b""
        try:
            while piece := self.answer.read1(1 << 16):
                got += piece
        except (ConnectionResetError, http.client.IncompleteRead):
            pass
        return got

    def close(self):
        # The socket too, which http.client keeps open while an answer is being read.
        if self.connection.sock:
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.answer.close()
        self.connection.close()


def flights(admin):
    return admin.good("GET", "flights")["flights"]


def an_administrator_sees_a_download_and_cuts_it(folder, *arguments):
    reason = Provider.why_not()
    if reason:
        return reason
    people = Provider(folder)
    server = serving.Server(folder, "--dev", *serving.FAST, *SLOW, *people.settings, *arguments)
    admin, data = packing.Admin(server), packing.content(1, SIZE)
    admin.register("core")
    admin.add("core", "1.0.0", data)
    assert flights(admin) == []
    download = Download(server)
    assert download.status == 200
    serving.wait_until(lambda: flights(admin), "it is listed")
    first, = flights(admin)
    assert (first["pack"], first["version"], first["size_bytes"]) == ("core", "1.0.0", SIZE), first
    assert first["address"] == "127.0.0.1" and "user" not in first and first["id"] >= 1, first
    serving.wait_until(lambda: flights(admin)[0]["sent_bytes"] > first["sent_bytes"], "more of it is sent")
    later, = flights(admin)
    assert later["id"] == first["id"] and later["age_ms"] >= first["age_ms"] and later["sent_bytes"] < SIZE, later
    # Who is no administrator neither sees it nor cuts it; nor is there anything after the last.
    user, session = people.sign_in(server, "ada")
    assert server.ask("/v1/admin/flights", headers=session)[0] == 403
    assert server.ask(f"/v1/admin/flights/{first['id']}", "DELETE", headers=session)[0] == 403
    assert server.ask("/v1/admin/flights", admin=True)[0] == 401
    assert admin.good("GET", f"flights?after={first['id']}")["flights"] == []
    status, _, answer = admin.ask("GET", "flights?after=x")
    assert (status, answer["error"]) == (400, "InvalidRequest"), answer
    # The download of somebody who is signed in has their name on it.
    named = Download(server, session)
    serving.wait_until(lambda: len(flights(admin)) == 2, "both are listed")
    assert [flight.get("user") for flight in flights(admin)] == [None, user], flights(admin)
    # It is cut, and only it; an administrator with a session does the same on the public listener.
    _, boss = people.sign_in(server, "boss")
    assert admin.ask("DELETE", f"flights/{first['id']}")[0] == 204
    got = download.take()
    assert len(got) < SIZE and got == data[:len(got)], len(got)
    serving.wait_until(lambda: len(flights(admin)) == 1, "it is gone from the list")
    status, _, answer = admin.ask("DELETE", f"flights/{first['id']}")
    assert (status, answer["error"]) == (404, "DownloadNotFound"), (status, answer)
    last, = flights(admin)
    status, _, text = server.ask(f"/v1/admin/flights/{last['id']}", "DELETE", headers=boss)
    assert status == 204, (status, text)
    assert len(named.take()) < SIZE
    serving.wait_until(lambda: not json.loads(server.ask("/v1/admin/flights", headers=boss)[2])["flights"], "none is left")
    status, _, text = server.ask(f"/v1/admin/flights/{last['id']}", "DELETE", headers=boss)
    assert status == 404 and "DownloadNotFound" in text, (status, text)
    for wrong in ("0", "x", "-1", "18446744073709551616"):
        assert admin.ask("DELETE", f"flights/{wrong}")[0] == 404, wrong
    assert server.metric("troupe_pack_downloads_in_flight") == 0
    download.close()
    named.close()
    admin.close()
    server.end()
    people.end()
    return None


def one_user_has_one_download_at_once(folder):
    """By who is signed in, whatever the session and the address; others are not kept waiting by it."""
    reason = Provider.why_not()
    if reason:
        return reason
    people = Provider(folder)
    server = serving.Server(folder, "--dev", *serving.FAST, *SLOW, *people.settings, "--set",
                            "packs.downloads_per_user=1")
    admin = packing.Admin(server)
    admin.register("core")
    admin.add("core", "1.0.0", packing.content(1, SIZE))
    (ada, session), (same, another) = people.sign_in(server, "ada"), people.sign_in(server, "ada")
    assert ada == same and session != another
    first = Download(server, session)
    assert first.status == 200
    for headers in (session, another):
        status, headers, body = packing.download(server, "/v1/packs/core/download", headers)
        assert status == 429 and json.loads(body)["error"] == "TooManyDownloads", (status, body[:200])
        assert headers.get("retry-after"), headers
    others = [Download(server, people.sign_in(server, "bob")[1]), Download(server)]
    assert [other.status for other in others] == [200, 200]
    # What is over makes room: here the client goes.
    first.close()

    def may_again():
        again = Download(server, another)
        again.close()
        return again.status == 200
    serving.wait_until(may_again, "the lease is given back")
    for other in others:
        other.close()
    serving.wait_until(lambda: not flights(admin), "all are over")
    assert server.metric("troupe_pack_downloads_refused_total") >= 2
    admin.close()
    server.end()
    people.end()
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases([
        *serving.on_both(an_administrator_sees_a_download_and_cuts_it), one_user_has_one_download_at_once]))
