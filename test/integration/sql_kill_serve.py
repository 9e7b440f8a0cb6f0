#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe serve` is killed under load, twenty times on each database: nothing that was acknowledged is lost, no epoch is
given twice, `troupe check delivery` finds nothing wrong, and what was not answered for is stored once when it is sent
again; unread counts are exact."""
import os
import random
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import adding
import serving
import talking

KILLS = 500 if serving.LONG else 20


def kill_again_and_again(folder, *arguments):
    seed = int(os.environ.get("TROUPE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    chance = random.Random(seed)
    ledger = adding.Ledger(folder)
    talk = talking.Talk(folder)
    convos = []
    server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
    try:
        talk.make(server)
        for kill in range(KILLS):
            recent = [f"convo-{kill}-{number}" for number in range(3)]
            for convo in recent:
                serving.create_convo(server, folder, convo)
            convos += recent
            stop = threading.Event()
            enough = len(ledger.acked) + chance.randrange(1, 120)
            threads = ledger.load(server, recent, stop) + talk.load(server, stop, chance)
            serving.wait_until(lambda enough=enough: len(ledger.acked) >= enough, f"{enough} adds")
            server.kill()
            stop.set()
            for thread in threads:
                thread.join(serving.LIMIT_S)
            adding.check_stored(server, *arguments)
            server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
            ledger.settle(server)
            ledger.check(server, recent)
            talk.settle(server)
            talk.check(server)
        ledger.check(server, convos)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    server.end()
    assert not [status for status in ledger.errors if status < 500], ledger.errors
    print(f"# {KILLS} kills, {len(ledger.acked)} adds acknowledged, lost 0; {len(talk.acked)} messages, unread "
          f"counts of {len(talking.PEOPLE)} people right after each; errors {ledger.errors}")


def nothing_is_lost_on_sqlite(folder):
    kill_again_and_again(folder)


def nothing_is_lost_on_postgresql(folder):
    postgres = serving.Postgres(folder)
    if not postgres.bin:
        return "PostgreSQL is not installed"
    postgres.make()
    kill_again_and_again(folder, "--db", postgres.url)
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases([nothing_is_lost_on_sqlite, nothing_is_lost_on_postgresql]))
