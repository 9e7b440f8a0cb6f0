#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A server of packs is killed while it takes an upload, publishes or rolls back, twenty times on each database: each of the
three is cut off in the middle, there is always exactly one active version and it can be downloaded, everything that was
acknowledged is there, what was being uploaded goes on, and nothing lies around that `troupe check packs` does not name."""
import http.client
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import packing
import serving

KILLS = 500 if serving.LONG else 20
SIZE = 700_000
TROUBLE = (OSError, http.client.HTTPException)
KINDS = ("upload", "publish", "rollback")


class Story:
    """What was done to the pack `core`, and what was acknowledged of it. Its thread goes on step by step, one kind after the
    other; the one who kills looks at `under_way`."""

    def __init__(self, chance):
        self.chance = chance
        self.acked = {}  # version: bytes
        self.steps = 0
        self.under_way = None  # (number, kind) of the step that has begun and was not acknowledged
        self.took_s = dict.fromkeys(KINDS, 0.01)  # the last one of each kind
        self.began = {kind: threading.Event() for kind in KINDS}
        self.pending = None  # (version, bytes): to be uploaded again, after a kill
        self.active = set()  # what may be active: one version, or two after a publish that was cut off
        self.count = 0

    def next_pending(self):
        if self.pending is None:
            self.count += 1
            data = packing.content(self.count, self.chance.randrange(1, SIZE))
            self.pending = f"{self.count}.0.0", data
        return self.pending

    def upload(self, admin):
        version, data = self.next_pending()
        known = {entry["version"] for entry in admin.show("core")["versions"]}
        if version not in known:  # else the answer to its finish was lost
            admin.upload("core", version, data, piece=self.chance.randrange(50_000, 400_000))
        self.acked[version] = data
        self.pending = None

    def publish(self, admin):
        version = self.chance.choice(list(self.acked))
        self.active.add(version)
        admin.publish("core", version)
        self.active = {version}

    def rollback(self, admin):
        before = self.active
        self.active = set(self.acked)  # the answer says which; without one it is one of these
        status, _, answer = admin.ask("POST", "packs/core/rollback", {})
        assert status == 200 or answer["error"] == "NothingToRollBack", (status, answer)
        self.active = {answer["active_version"]} if status == 200 else before

    def step(self, admin):
        kind = KINDS[self.steps % len(KINDS)]
        began_s = time.monotonic()
        self.under_way = self.steps, kind
        self.began[kind].set()
        getattr(self, kind)(admin)
        self.under_way = None
        self.took_s[kind] = time.monotonic() - began_s
        self.steps += 1

    def go_on(self, admin, stop, errors):
        try:
            while not stop.is_set():
                self.step(admin)
        except TROUBLE:
            pass  # the kill
        except AssertionError as error:
            errors.append(error)
        finally:
            admin.close()


def kill_in(server, story, kind, errors):
    """Kill it while such a step is under way; True: that step was never acknowledged."""
    story.began[kind].clear()
    serving.wait_until(lambda: story.began[kind].wait(0.1) or errors, f"a step of the kind {kind}")
    threading.Event().wait(story.chance.random() * story.took_s[kind])
    before = story.under_way
    server.kill()
    return lambda: before is not None and before == story.under_way and before[1] == kind


def check_disk(server, story, named, shown):
    """Objects that neither a version nor the upload that was cut off has are all named."""
    known = {entry["sha256"] for entry in shown["versions"]}
    if story.pending:
        known.add(packing.digest(story.pending[1]))
    orphans = packing.objects(server) - known - named
    assert not orphans, f"nobody names {orphans}"


def check_incoming(server, admin, left, named):
    """Of what the kill left there, what was named is gone, and the rest is an upload that can go on."""
    kept = packing.incoming(server)
    assert not kept & named, f"named, and still there: {kept & named}"
    for upload in left - named:
        status, _, answer = admin.ask("GET", f"uploads/{upload}")
        assert status == 200 and upload in kept, f"nobody names {upload}: {status} {answer}"


def check_story(server, story, named, left=frozenset()):
    admin = packing.Admin(server)
    shown = admin.show("core")
    active = [entry for entry in shown["versions"] if entry["is_active"]]
    by_version = {entry["version"]: entry for entry in shown["versions"]}
    assert len(active) == 1, f"{len(active)} active versions"
    assert active[0]["version"] in story.active, f"{active[0]['version']} is active, not {story.active}"
    story.active = {active[0]["version"]}
    for version, data in story.acked.items():
        assert by_version[version]["sha256"] == packing.digest(data), version
    status, headers, body = packing.download(server, "/v1/packs/core/download")
    assert status == 200 and packing.digest(body) == active[0]["sha256"], (status, headers)
    check_disk(server, story, named, shown)
    check_incoming(server, admin, left, named)
    admin.close()


def kill_again_and_again(folder, *arguments):
    seed = int(os.environ.get("TROUPE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    chance = random.Random(seed)
    story = Story(chance)
    server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
    named_in_all, cut = 0, dict.fromkeys(KINDS, 0)
    try:
        admin = packing.Admin(server)
        admin.register("core")
        for kind in KINDS[:2] * 2:  # two versions were published: there is something to roll back to
            getattr(story, kind)(admin)
        admin.close()
        for _ in range(KILLS):
            stop, errors = threading.Event(), []
            enough = story.steps + chance.randrange(0, 3)
            thread = threading.Thread(target=story.go_on, args=(packing.Admin(server), stop, errors))
            thread.start()
            serving.wait_until(lambda enough=enough: story.steps >= enough or errors, f"{enough} steps")
            kind = min(KINDS, key=cut.get)
            was_cut = kill_in(server, story, kind, errors)
            stop.set()
            thread.join(serving.LIMIT_S)
            assert not errors, errors[0]
            cut[kind] += was_cut()
            violations = packing.check_packs(folder, *arguments)
            named = {subject for _, subject, _ in violations}
            damage = [found for found in violations if found[0] != "note"]
            assert not damage, damage
            named_in_all += len(named)
            left = packing.incoming(server)
            server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
            check_story(server, story, named, left)
        assert min(cut.values()) > 0, f"not every kind of step was cut off: {cut}"
        admin = packing.Admin(server)
        if story.pending:
            story.upload(admin)
        admin.close()
        check_story(server, story, set())
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    server.end()
    left = packing.check_packs(folder, *arguments)
    assert not left, left
    print(f"# {KILLS} kills, which cut off " + ", ".join(f"{count} of {kind}" for kind, count in cut.items()) +
          f"; {story.steps} steps, {len(story.acked)} versions acknowledged, lost 0; check named {named_in_all} left-overs")


def one_version_is_always_active_on_sqlite(folder):
    kill_again_and_again(folder)


def one_version_is_always_active_on_postgresql(folder):
    postgres = serving.Postgres(folder)
    if not postgres.bin:
        return "PostgreSQL is not installed"
    postgres.make()
    kill_again_and_again(folder, "--db", postgres.url)
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases(
        [one_version_is_always_active_on_sqlite, one_version_is_always_active_on_postgresql]))
