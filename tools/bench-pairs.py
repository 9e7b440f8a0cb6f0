#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench-pairs.py BEFORE AFTER [-n PAIRS] [-s SECONDS] [WORKLOAD...]: two builds side by side.

BEFORE and AFTER are build directories (build/release of two checkouts). Each pair runs both, one right after the other,
in changing order, so that a bad minute of the machine hits both alike. Both servers start anew every five pairs, because
the memory a process happens to get can make it faster or slower for as long as it runs. Printed is the median of the
ratios AFTER ÷ BEFORE with its quartiles: of the server's CPU time per request for the services, of ns per message (ask:
p50 of a request) for the library. Under 1 is better.

health epoch message commit   delivery, by delivery-load of BEFORE
download                      4 KB packs on 16 connections, by packs-load of BEFORE
pingpong ring fanin counting ask spawn   troupe-bench"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "test/lib"))
import serving  # noqa: E402  # pylint: disable=wrong-import-position,import-error

LIBRARY = ["pingpong", "ring", "fanin", "counting", "ask", "spawn"]
# Our name: the command of delivery-load, how many conversations.
DELIVERY = {"health": ("health", 1), "epoch": ("epoch", 100), "message": ("mls", 100), "commit": ("commit", 100)}
WORKLOADS = [*DELIVERY, "download", *LIBRARY]
PAIRS_OF_A_START = 5
LIMITS = ["--dev", *serving.FAST, "--set", "http.access_log=off", "--set", "log.level=warn", "--set",
          "packs.requests_per_address=0", "--set", "packs.downloads_per_address=0"]


class Build:
    """One of the two, with a server that runs while it is measured."""

    def __init__(self, path, folder, tools):
        self.path, self.folder, self.tools = os.path.abspath(path), folder, tools
        os.makedirs(folder)
        serving.TROUPE = os.path.join(self.path, "troupe")
        self.server = serving.Server(folder, *LIMITS)
        self.next = 0
        file = os.path.join(folder, "pack")
        with open(file, "wb") as out:
            out.write(os.urandom(4096))
        subprocess.run([serving.TROUPE, "packs", "push", file, "--name", "pack", "--version", "1", "--data",
                        self.server.data, "--key", os.path.join(folder, "key")], check=True, capture_output=True,
                       env=serving.environment())

    def tool(self, name, *words):
        done = subprocess.run([os.path.join(self.tools, name), *map(str, words)], capture_output=True, text=True,
                              timeout=300, check=False)
        assert done.returncode == 0, f"{name} {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def deliver(self, name, seconds):
        command, convos = DELIVERY[name]
        if command != "health":
            self.tool("delivery-load", "create", self.server.public, "-n", convos, "-f", self.next, "-x", 64)
        before = self.server.cpu_s()
        said = serving.numbers(self.tool("delivery-load", command, self.server.public, "-n", convos, "-f", self.next,
                                         "-s", seconds))
        self.next += convos
        assert said["ok"] > 0, said
        return (self.server.cpu_s() - before) / said["ok"]

    def download(self, seconds):
        said = self.tool("packs-load", "-w", "0.2", "-p", self.server.process.pid, self.server.public,
                         "/v1/packs/pack/download", 16, seconds)
        requests, wrong, used = re.match(r"(\d+) requests \d+ bytes (\d+) wrong [\d.]+ s ([\d.]+) CPU", said).groups()
        assert wrong == "0", said
        return float(used) / int(requests)

    def measure(self, name, seconds):
        if name in DELIVERY:
            return self.deliver(name, seconds)
        if name == "download":
            return self.download(seconds)
        said = subprocess.run([os.path.join(self.path, "troupe-bench"), name], capture_output=True, text=True, check=True)
        return float(said.stdout.split()[1])


def measure_pairs(options, name, first):
    """Starts both builds and measures pairs from number `first` on; returns (before, after, ratio) of each."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        builds = [Build(path, os.path.join(folder, label), os.path.abspath(options.before))
                  for label, path in (("before", options.before), ("after", options.after))]
        try:
            for pair in range(first, min(first + PAIRS_OF_A_START, options.n)):
                order = [0, 1] if pair % 2 == 0 else [1, 0]
                values = {which: builds[which].measure(name, options.s) for which in order}
                rows.append((values[0], values[1], values[1] / values[0]))
        finally: # a failed measurement leaves no server behind
            for build in builds:
                build.server.end()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("workloads", nargs="*", help=f"any of {' '.join(WORKLOADS)}; all unless named")
    parser.add_argument("-n", type=int, default=9, help="pairs (9)")
    parser.add_argument("-s", type=float, default=2, help="seconds of one measurement of a service (2)")
    options = parser.parse_intermixed_args()
    print("| workload | before | after | after ÷ before | quartiles |\n|---|---|---|---|---|")
    for name in options.workloads or WORKLOADS:
        rows = []
        while len(rows) < options.n:
            rows += measure_pairs(options, name, len(rows))
        low, middle, high = statistics.quantiles([row[2] for row in rows], n=4)
        unit = (1e6, "µs of CPU") if name not in LIBRARY else (1, "ns")
        print(f"| {name} | {statistics.median(row[0] for row in rows) * unit[0]:.1f} {unit[1]} "
              f"| {statistics.median(row[1] for row in rows) * unit[0]:.1f} {unit[1]} | {middle:.3f} | {low:.3f} to {high:.3f} |",
              flush=True)


if __name__ == "__main__":
    main()
