#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Settings, states, sessions and items of a person whose devices push and pull through `troupe serve`, which is killed
in the middle, on both databases: what was acknowledged is there, each device gets every row once and in order, other
people see nothing of it, and administrators see who did what."""
import http.client
import json
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import packing
import serving
from provider import Provider

KILLS = 30 if serving.LONG else 3
NAMES = {"settings": "key", "memory_states": "node_id", "sessions": "id", "session_items": "id"}


class Device:
    """One device of somebody: what it has pulled, and its cursor."""

    def __init__(self, name, session):
        self.name, self.session = name, session
        self.cursor, self.rows, self.pages = 0, {}, 0

    def ask(self, server, call, body):
        status, _, text = server.ask(f"/v1/sync/{call}", "POST", body=json.dumps({"device_id": self.name, **body}),
                                     headers={**self.session, "Content-Type": "application/json"})
        return status, json.loads(text)

    def push(self, server, changes, **more):
        status, answer = self.ask(server, "push", {"changes": changes, **more})
        assert status == 200 and not answer["rejected"], (status, answer)
        return answer

    def pull(self, server, limit=3):
        """Everything there is after the cursor, in pages. A device that was away may get fewer than it missed: rows that
        were written again since have moved behind."""
        while True:
            status, answer = self.ask(server, "pull", {"since": self.cursor, "limit": limit})
            assert status == 200, (status, answer)
            self.pages += 1
            found = [(kind, row) for kind in NAMES for row in answer["changes"][kind]]
            numbers = sorted(row["seq"] for _, row in found)
            assert len(set(numbers)) == len(numbers) <= limit, numbers
            assert all(self.cursor < number <= answer["next_cursor"] for number in numbers), (self.cursor, numbers)
            for kind, row in found:
                self.rows[kind, row[NAMES[kind]]] = row
            self.cursor = answer["next_cursor"]
            if not answer["has_more"]:
                return


def changes_of(number):
    """A push with a row of each list; every third takes a state back."""
    at = {"client_updated_at": 1_700_000_000_000 + number}
    return {"settings": [{"key": f"k{number % 4}", "value": number, **at}],
            "memory_states": [{"node_id": f"n{number % 5}", "value": number, "deleted": number % 3 == 0, **at}],
            "sessions": [{"id": f"s{number}", "value": number, **at}],
            "session_items": [{"id": f"i{number}", "session_id": f"s{number}", "value": number, **at}]}


def push_until_it_is_killed(device, server, first, acked, errors):
    number = first
    try:
        while True:
            acked["under way"] = number
            device.push(server, changes_of(number))
            acked["last"] = number
            number += 1
    except (OSError, http.client.HTTPException, json.JSONDecodeError):
        pass  # the kill
    except AssertionError as error:
        errors.append(error)


def check_rows(rows, last, under_way):
    """Every push up to `last` is there, whole, and of the one under way all or nothing."""
    if ("sessions", f"s{under_way}") in rows:
        last = under_way
    count = {kind: len([1 for found, _ in rows if found == kind]) for kind in NAMES}
    assert count["sessions"] == count["session_items"] == last, (count, last, under_way)
    for number in range(1, last + 1):
        for kind, item in (("sessions", f"s{number}"), ("session_items", f"i{number}")):
            assert rows[kind, item]["value"] == number, (kind, item)
        if number > last - 4:
            assert rows["settings", f"k{number % 4}"]["value"] == number, number
        if number > last - 5:
            state = rows["memory_states", f"n{number % 5}"]
            assert state["deleted"] == (number % 3 == 0) and state["client_updated_at"] == 1_700_000_000_000 + number, state
    return last


def check_administrators(server, people, user, last):
    """The two calls about a user, on the admin listener and for a session of the role admin."""
    token = packing.Admin(server).headers
    _, boss = people.sign_in(server, "boss")
    status_path, conflicts_path = f"/v1/admin/users/{user}/sync_status", f"/v1/admin/sync/conflicts/{user}"
    for path in (status_path, conflicts_path):
        assert server.ask(path, admin=True)[0] == 401
        assert server.ask(path, headers=people.sign_in(server, "ada")[1])[0] == 403
    for where in ({"admin": True, "headers": token}, {"headers": boss}):
        status, _, text = server.ask(status_path, **where)
        answer = json.loads(text)
        assert status == 200 and answer["user"] == user, (status, text)
        assert answer["rows"]["sessions"]["count"] == last and answer["rows"]["settings"]["count"] == 4, answer
        assert {device["device_id"] for device in answer["devices"]} == {"phone", "tablet"}, answer
        assert answer["conflicts"] == 1, answer
        status, _, text = server.ask(conflicts_path + "?limit=5", **where)
        conflict, = json.loads(text)["conflicts"]
        assert status == 200 and (conflict["list"], conflict["item"]) == ("settings", "k1"), text
        assert conflict["lost"]["device_id"] == "tablet", text
        assert server.ask(status_path.replace(user, "nobody"), **where)[0] == 404
        assert server.ask(conflicts_path + "?limit=201", **where)[0] == 400


def nothing_is_missed_when_it_is_killed(folder, *arguments):
    reason = Provider.why_not()
    if reason:
        return reason
    people = Provider(folder)
    arguments = ["--dev", *serving.FAST, *people.settings, *arguments]
    server = serving.Server(folder, *arguments)
    user, session = people.sign_in(server, "ada")
    phone, tablet, fresh = Device("phone", session), Device("tablet", session), Device("fresh", session)
    acked, errors = {"last": 0, "under way": 0}, []
    for _ in range(KILLS):
        enough = acked["last"] + 4
        thread = threading.Thread(target=push_until_it_is_killed, args=(phone, server, acked["last"] + 1, acked, errors))
        thread.start()
        serving.wait_until(lambda enough=enough: acked["last"] >= enough or errors, f"{enough} pushes")
        tablet.pull(server)  # while the phone pushes
        server.kill()
        thread.join(serving.LIMIT_S)
        assert not errors, errors[0]
        server = serving.Server(folder, *arguments)
        tablet.pull(server)
        acked["last"] = check_rows(tablet.rows, acked["last"], acked["under way"])
    fresh.pull(server, limit=1000)
    assert fresh.rows == tablet.rows and fresh.cursor == tablet.cursor, "who was there has something else than who was not"
    assert tablet.pages > fresh.pages
    # An older write of another device loses and is noted; a repeated push changes nothing.
    late = {"settings": [{"key": "k1", "value": "late", "client_updated_at": 1_600_000_000_000}]}
    assert tablet.push(server, late)["skipped"] == 1
    assert phone.push(server, changes_of(acked["last"]))["applied"] == 0
    tablet.pull(server)
    assert tablet.rows == fresh.rows
    check_administrators(server, people, user, acked["last"])
    # Somebody else has none of it, and a row of the same name is their own.
    bob = Device("phone", people.sign_in(server, "bob")[1])
    bob.pull(server)
    assert not bob.rows and bob.cursor == 0
    bob.push(server, changes_of(1))
    bob.pull(server)
    assert len(bob.rows) == 4
    tablet.pull(server)
    assert tablet.rows == fresh.rows
    # What its database has not given out yet is not taken for a cursor.
    status, answer = tablet.ask(server, "pull", {"since": tablet.cursor + 1000})
    assert status == 409 and answer["error"] == "CursorAhead", (status, answer)
    server.end()
    people.end()
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases(serving.on_both(nothing_is_missed_when_it_is_killed)))
