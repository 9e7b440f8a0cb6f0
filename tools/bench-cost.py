#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench-cost.py [-n COUNT]: what one sendMessage and one commit cost, counted and not timed.

A real MLS client (test/clients/cost.mjs) sends COUNT requests of each kind, one after the other, to `troupe serve` on
SQLite. For each kind the median of these per request is printed: SQLite statements that ran, COMMITs, allocations of
the whole process, messages between actors. The connection, its token and its conversation are warm; the server's own
timers may add one. TROUPE_BUILD says which build is measured (build/release)."""
import argparse
import os
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "test/lib"), os.path.join(ROOT, "test/integration")]
import mls_clients  # noqa: E402  # pylint: disable=wrong-import-position,import-error
import serving  # noqa: E402  # pylint: disable=wrong-import-position,import-error


class Counters:
    """What the server has done so far."""
    NAMES = ["SQL statements", "COMMITs", "allocations", "messages between actors"]

    def __init__(self, server, path):
        self.server, self.path = server, path

    def read(self):
        commits, messages = self.server.metric("troupe_sql_commits_total"), self.server.metric("troupe_messages_sent_total")
        with open(self.path, "rb") as file:
            allocations, statements = struct.unpack("=QQ", file.read(16))
        return [statements, commits, allocations, messages]


def measure(counters, client, kinds, idle):
    before = None
    for line in client.stdout:
        moment, _, kind = line.strip().partition(" ")
        if moment == "before":
            before = counters.read()
        else:
            # Reading the counters is a request of its own, on the admin listener: idle is what that costs.
            kinds.setdefault(kind, []).append([now - then - cost for now, then, cost in zip(counters.read(), before, idle)])
        client.stdin.write("\n")
        client.stdin.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-n", type=int, default=30, help="requests of each kind (30)")
    count = parser.parse_args().n
    node = mls_clients.install()
    with tempfile.TemporaryDirectory() as folder:
        shim, path = os.path.join(folder, "count_calls.so"), os.path.join(folder, "counts")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-o", shim,
                        os.path.join(ROOT, "bench/delivery/count_calls.c"), "-ldl"], check=True)
        server = serving.Server(folder, "--dev", "--set", "log.level=warn", *serving.FAST, LD_PRELOAD=shim,
                                COUNT_CALLS_FILE=path)
        counters, kinds = Counters(server, path), {}
        moments = [counters.read() for _ in range(10)]
        idle = [statistics.median(column) for column in zip(*(
            [after - before for before, after in zip(*pair)] for pair in zip(moments, moments[1:])))]
        with subprocess.Popen([node, "--no-warnings", os.path.join(mls_clients.CLIENTS, "cost.mjs"),
                               "http://" + server.public, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, bufsize=1) as client:
            measure(counters, client, kinds, idle)
        server.end()
    print("| per request | " + " | ".join(Counters.NAMES) + " |\n|---|" + "---|" * len(Counters.NAMES))
    for kind, rows in kinds.items():
        print(f"| {kind} | " + " | ".join(f"{statistics.median(column):g}" for column in zip(*rows)) + " |")
    return client.returncode


if __name__ == "__main__":
    sys.exit(main())
