#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A server of packs is killed while it takes uploads, publishes and rolls back, twenty times on each database: there is
always exactly one active version and it can be downloaded, every version that was acknowledged is there, what was being
uploaded goes on, and nothing lies around that `troupe check packs` does not name."""
import http.client
import os
import random
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import packing
import serving

KILLS = 500 if serving.LONG else 20
SIZE = 700_000
TROUBLE = (OSError, http.client.HTTPException)


class Story:
    """What was done to the pack `core`, and what was acknowledged of it."""

    def __init__(self, chance):
        self.chance = chance
        self.acked = {}  # version: bytes
        self.steps = 0
        self.pending = None  # (version, bytes): to be uploaded again, after a kill
        self.count = 0

    def next_pending(self):
        if self.pending is None:
            self.count += 1
            data = packing.content(self.count, self.chance.randrange(1, SIZE))
            self.pending = f"{self.count}.0.0", data
        return self.pending

    def add(self, admin):
        version, data = self.next_pending()
        known = {entry["version"] for entry in admin.show("core")["versions"]}
        if version not in known:  # else the answer to its finish was lost
            admin.upload("core", version, data, piece=self.chance.randrange(50_000, 400_000))
        self.acked[version] = data
        self.pending = None
        admin.publish("core", version)

    def step(self, admin):
        kind = self.chance.randrange(3)
        if kind == 0 and len(self.acked) > 2:
            status, _, answer = admin.ask("POST", "packs/core/rollback", {})
            assert status == 200 or answer["error"] == "NothingToRollBack", (status, answer)
        elif kind == 1 and self.acked:
            admin.publish("core", self.chance.choice(list(self.acked)))
        else:
            self.add(admin)
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


def check_disk(server, story, named, shown):
    """Objects that neither a version nor the upload that was cut off has are all named."""
    known = {entry["sha256"] for entry in shown["versions"]}
    if story.pending:
        known.add(packing.digest(story.pending[1]))
    orphans = packing.objects(server) - known - named
    assert not orphans, f"nobody names {orphans}"


def check_story(server, story, named):
    admin = packing.Admin(server)
    shown = admin.show("core")
    active = [entry for entry in shown["versions"] if entry["is_active"]]
    by_version = {entry["version"]: entry for entry in shown["versions"]}
    assert len(active) == 1, f"{len(active)} active versions"
    for version, data in story.acked.items():
        assert by_version[version]["sha256"] == packing.digest(data), version
    status, headers, body = packing.download(server, "/v1/packs/core/download")
    assert status == 200 and packing.digest(body) == active[0]["sha256"], (status, headers)
    check_disk(server, story, named, shown)
    admin.close()


def kill_again_and_again(folder, *arguments):
    seed = int(os.environ.get("TROUPE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    chance = random.Random(seed)
    story = Story(chance)
    server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
    named_in_all = 0
    try:
        admin = packing.Admin(server)
        admin.register("core")
        story.add(admin)
        admin.close()
        for _ in range(KILLS):
            stop, errors = threading.Event(), []
            enough = story.steps + chance.randrange(0, 6)
            thread = threading.Thread(target=story.go_on, args=(packing.Admin(server), stop, errors))
            thread.start()
            serving.wait_until(lambda enough=enough: story.steps >= enough or errors, f"{enough} steps")
            stop.wait(chance.random() * 0.03)  # somewhere in the middle of the next
            server.kill()
            stop.set()
            thread.join(serving.LIMIT_S)
            assert not errors, errors[0]
            violations = packing.check_packs(folder, *arguments)
            named = {subject for _, subject, _ in violations}
            damage = [found for found in violations if found[0] not in ("objects", "incoming")]
            assert not damage, damage
            named_in_all += len(named)
            server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
            check_story(server, story, named)
        admin = packing.Admin(server)
        if story.pending:
            story.add(admin)
        admin.close()
        check_story(server, story, set())
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    server.end()
    left = packing.check_packs(folder, *arguments)
    assert not left, left
    print(f"# {KILLS} kills, {story.steps} steps, {len(story.acked)} versions acknowledged, lost 0; "
          f"check named {named_in_all} left-overs")


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
