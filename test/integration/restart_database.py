#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a server stands on fails and comes back, under load and without a restart of the server: PostgreSQL, and a disk
that was full. What was acknowledged is there afterwards."""
import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import adding
import serving

RESTARTS = 20 if serving.LONG else 3


def postgresql_restarted_under_load(folder):
    postgres = serving.Postgres(folder)
    if not postgres.bin:
        return "PostgreSQL is not installed"
    postgres.make()
    # Without its database a request waits for it until its deadline: a short one here. That it is refused sooner is
    # what sql_away_serve.py is about; so quick a refusal would make thousands of them here.
    server = serving.Server(folder, "--dev", *serving.FAST, "--db", postgres.url, "--set", "http.request_timeout=2s")
    ledger, convos = adding.Ledger(folder), []
    for restart in range(RESTARTS):
        recent = [f"convo-{restart}-{number}" for number in range(3)]
        for convo in recent:
            serving.create_convo(server, folder, convo)
        convos += recent
        stop = threading.Event()
        threads = ledger.load(server, recent, stop)
        try:
            enough = len(ledger.acked) + 40
            serving.wait_until(lambda enough=enough: len(ledger.acked) >= enough, f"{enough} adds")
            postgres.stop(("immediate", "fast")[restart % 2])
            errors = sum(ledger.errors.values())
            serving.wait_until(lambda errors=errors: sum(ledger.errors.values()) > errors, "an error is told")
            serving.wait_until(lambda: not server.is_ready(), "not ready without its database")
            postgres.start()
            enough = len(ledger.acked) + 20
            serving.wait_until(lambda enough=enough: len(ledger.acked) >= enough, "adds again")
        finally:
            stop.set()
            for thread in threads:
                thread.join(serving.LIMIT_S)
        serving.wait_until(server.is_ready, "ready again")
        ledger.settle(server)
    ledger.check(server, convos)
    server.end()
    assert not [status for status in ledger.errors if status < 500], ledger.errors
    print(f"# {RESTARTS} restarts, {len(ledger.acked)} adds acknowledged, lost 0; errors {ledger.errors}")
    return None


def disk_full_then_space_again(folder):
    place = os.path.join(folder, "data")
    os.mkdir(place, 0o700)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "tmpfs", place], capture_output=True,
                           check=False)
    if mount.returncode != 0:
        return "a small disk can only be mounted by root"
    try:
        fill_and_make_room(folder, place)
    finally:
        while serving.Server.alive:
            process = serving.Server.alive.pop()
            process.kill()
            process.wait()
        subprocess.run(["umount", place], check=True)
    return None


def fill_and_make_room(folder, place):
    server = serving.Server(folder, "--dev", *serving.FAST)
    ledger, convos = adding.Ledger(folder), [f"convo-{number}" for number in range(3)]
    for convo in convos:
        serving.create_convo(server, folder, convo)
    stop = threading.Event()
    threads = ledger.load(server, convos, stop)
    filler = os.path.join(place, "filler")
    try:
        serving.wait_until(lambda: len(ledger.acked) >= 20, "20 adds")
        with open(filler, "wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096) == 4096:
                    pass
            except OSError:
                pass  # full
        serving.wait_until(lambda: sum(ledger.errors.values()) > 5 or server.process.poll() is not None, "errors")
        assert server.process.poll() is None, f"it ended: {server.log()[-1500:]}"
        assert server.is_well()
        os.unlink(filler)
        # More than fits into the disk, if the write-ahead log were left to grow.
        enough = len(ledger.acked) + 600
        serving.wait_until(lambda: len(ledger.acked) >= enough, "adds again, without a restart")
    finally:
        stop.set()
        for thread in threads:
            thread.join(serving.LIMIT_S)
    ledger.settle(server)
    ledger.check(server, convos)
    serving.wait_until(server.is_ready, "ready again")
    server.end()
    server = serving.Server(folder, "--dev", *serving.FAST)
    ledger.check(server, convos)
    server.end()
    assert not [status for status in ledger.errors if status < 500], ledger.errors
    print(f"# {len(ledger.acked)} adds acknowledged, lost 0; errors {ledger.errors}")


if __name__ == "__main__":
    sys.exit(serving.run_cases([postgresql_restarted_under_load, disk_full_then_space_again]))
