#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of the delivery service: under the names that a Catbird server has, and under our own."""
import base64
import os
import re
import shutil
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import serving  # noqa: E402  # pylint: disable=wrong-import-position

RULES = os.path.join(serving.ROOT, "packaging/catbird.rules.yml")
COUNTED = ["mls_messages_sent_total", "mls_groups_created_total", "epoch_conflicts_total", "idempotency_cache_hits_total",
           "idempotency_cache_misses_total", "idempotency_cache_stores_total", "idempotency_cache_skipped_total",
           "fanout_operations_total", "active_sse_connections", "actor_spawns_total", "actor_stops_total",
           "actor_restarts_total", "actor_mailbox_full_events_total", "actor_message_drops_total",
           "actor_message_duration_seconds", "epoch_increment_duration_seconds", "envelope_write_duration_seconds"]


def names_of(body):
    return re.findall(r"^# HELP (\S+)", body, re.MULTILINE)


def commit(group, base, text):
    """A PrivateMessage with a commit, as much as a server sees of it (RFC 9420)."""
    parts = (group, struct.pack(">QB", base, 3), b"", b"s" * 28, text)
    return b"\0\1\0\2" + b"".join(part if i == 1 else bytes([len(part)]) + part for i, part in enumerate(parts))


def what_happens_is_counted_under_both_names(folder):
    server = serving.Server(folder, "--dev")
    before = {name: server.metric(name) for name in COUNTED}
    assert not any(before.values()), before
    serving.create_convo(server, folder, "g1")
    body = {"convoId": "g1", "didList": ["did:plc:somebody"], "idempotencyKey": "one"}
    for _ in range(2):
        status, answer = serving.call(server, folder, "addMembers", body)
        assert (status, answer["newEpoch"]) == (200, 1), answer
    status, answer = serving.call(server, folder, "addMembers", {"convoId": "g1", "didList": ["did:plc:another"]})
    assert status == 200, answer
    wanted = {"mls_groups_created_total": 1, "idempotency_cache_hits_total": 1, "idempotency_cache_misses_total": 1,
              "idempotency_cache_stores_total": 1, "idempotency_cache_skipped_total": 1, "actor_spawns_total": 1,
              "epoch_increment_duration_seconds_count": 2, "actor_message_duration_seconds_count": 4,
              "actor_restarts_total": 0, "actor_message_drops_total": 0, "troupe_delivery_commits_total": 2}
    seen = {name: server.metric(name) for name in wanted}
    assert seen == wanted, seen
    server.end()


def a_lost_epoch_is_a_conflict_and_a_group_that_exists_is_none(folder):
    server = serving.Server(folder, "--dev")
    for path in ("by an actor", "direct"):
        if path == "direct":
            done = subprocess.run([serving.TROUPE, "flags", "set", "delivery.direct", "100%", "--data", server.data],
                                  capture_output=True, text=True, check=False, env=serving.environment())
            assert done.returncode == 0, done.stderr
        before = server.metric("troupe_delivery_epoch_conflicts_total")
        group = "g " + path
        serving.create_convo(server, folder, group)
        status, answer = serving.call(server, folder, "createConvo", {"groupId": group, "cipherSuite": serving.SUITE})
        assert (status, answer["error"]) == (409, "ConvoExists"), answer
        assert server.metric("troupe_delivery_epoch_conflicts_total") == before, "a creation is no commit"
        assert server.metric("epoch_conflicts_total") == before
        for text, wanted in ((b"first", 200), (b"second", 409)):
            status, answer = serving.call(server, folder, "submitCommit", {
                "convoId": group, "commit": base64.b64encode(commit(group.encode(), 0, text)).decode()})
            assert status == wanted, answer
        assert answer["error"] == "EpochConflict", answer
        assert server.metric("troupe_delivery_epoch_conflicts_total") == before + 1
        assert server.metric("epoch_conflicts_total") == before + 1
    body = server.ask("/metrics", admin=True)[2]
    assert 'troupe_delivery_epoch_conflicts_total{path="direct"} 1' in body, body
    server.end()


def names_are_there_from_the_start_and_described(folder):
    server = serving.Server(folder, "--dev")
    body = server.ask("/metrics", admin=True)[2]
    server.end()
    names = names_of(body)
    assert len(names) == len(set(names)), "a name is there twice"
    assert set(COUNTED) <= set(names), sorted(set(COUNTED) - set(names))
    with open(os.path.join(serving.ROOT, "docs/operations.md"), encoding="utf-8") as file:
        described = set(re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|", file.read(), re.MULTILINE))
    missing = [name for name in names if name not in described and not name.startswith(("troupe_pack", "troupe_manifest"))]
    assert not missing, f"not in docs/operations.md: {missing}"
    if not shutil.which("promtool"):
        return "promtool is not installed"
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr
    return None


def the_rules_ask_for_what_is_there(folder):
    server = serving.Server(folder, "--dev")
    serving.create_convo(server, folder, "g1")
    body = server.ask("/metrics", admin=True)[2]
    server.end()
    with open(RULES, encoding="utf-8") as file:
        rules = file.read()
    recorded, asked = re.findall(r"record: (\w+)", rules), re.findall(r"\b(troupe_\w+)", rules)
    assert len(recorded) == len(asked) == len(set(recorded)) > 0
    for name in asked:
        assert re.search(rf"^(?:# TYPE )?{name}\b", body, re.MULTILINE), f"{name} is not there"
    assert not set(recorded) & set(names_of(body)), "a rule records what is counted already"
    if not shutil.which("promtool"):
        return "promtool is not installed"
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases([what_happens_is_counted_under_both_names,
                                a_lost_epoch_is_a_conflict_and_a_group_that_exists_is_none,
                                names_are_there_from_the_start_and_described, the_rules_ask_for_what_is_there]))
