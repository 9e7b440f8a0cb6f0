#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""bench/overload/overload.py: `troupe serve` at ten times what it can do.

Capacity is what a closed loop of 128 connections gets through: numbered addMembers, each with a token of its own to
verify and a durable unit to store. Then requests come at ten times that rate, due at even distances whatever the
server does (drive.c), on more connections than http.in_flight_max, while a second client asks the admin listener for
/readyz fifty times a second. Then capacity again. The server has one core and the clients another, so that the clients
take nothing from it; other work on the machine does, so each figure that can be is also given per second of the
server's CPU time. Prints `name value` lines."""
import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../test/lib"))
import serving  # pylint: disable=wrong-import-position

CONVOS = 100
PATH = f"/xrpc/{serving.PREFIX}addMembers"
CORES = sorted(os.sched_getaffinity(0))


def on_core(index):
    """Words that start a program on one core; none where there is only one."""
    return ("taskset", "-c", str(CORES[index])) if len(CORES) > 1 else ()


class Stage:
    """A server with conversations to add members to."""

    def __init__(self, folder, *arguments):
        self.folder = folder
        self.drive = serving.compile_drive(folder)
        self.server = serving.Server(folder, "--dev", *serving.FAST, "--set", "server.workers=1", "--set",
                                     "http.access_log=off", *arguments, before=on_core(0))
        self.members = 0
        for number in range(CONVOS):
            serving.create_convo(self.server, folder, f"convo-{number}")

    def write_lines(self, count):
        """Requests for the driver: fresh tokens (they live for a minute) and members nobody has added."""
        path = os.path.join(self.folder, "lines")
        with open(path, "w", encoding="ascii") as file:
            for token in serving.tokens(self.folder, "addMembers", count):
                file.write(f'{token} {{"convoId":"convo-{self.members % CONVOS}",'
                           f'"didList":["did:example:{self.members}"]}}\n')
                self.members += 1
        return path

    def run(self, rate, connections, seconds, lines):
        """The driver's numbers, the server's CPU time and the most memory it was seen to have."""
        path = self.write_lines(lines)
        before_s = self.server.cpu_s()
        # pylint: disable=consider-using-with  # it is waited for below
        process = subprocess.Popen([*on_core(-1), self.drive, self.server.public, "-p", PATH, "-f", path, "-r", str(rate),
                                    "-c", str(connections), "-s", str(seconds)], stdout=subprocess.PIPE, text=True)
        memory_kb = self.server.memory_kb()
        while process.poll() is None:
            memory_kb = max(memory_kb, self.server.memory_kb())
            threading.Event().wait(0.05)
        found = serving.numbers(process.stdout.read())
        found.update(memory_kb=memory_kb, server_cpu_s=self.server.cpu_s() - before_s, dry=process.returncode == 3)
        return found

    def probe_admin(self, seconds):
        """Fifty questions a second to the admin listener, from a client of its own."""
        # pylint: disable=consider-using-with  # the caller waits for it
        return subprocess.Popen([*on_core(-1), self.drive, self.server.admin, "-p", "/readyz", "-c", "2", "-r", "50",
                                 "-s", str(seconds)], stdout=subprocess.PIPE, text=True)


def per_cpu(found):
    return found["status_2xx"] / max(found["server_cpu_s"], 0.01)


def measure(stage, seconds, factor=10):
    """Capacity, overload, capacity again."""
    stage.run(0, 128, 1, 8000)  # warm
    quiet = serving.numbers(stage.probe_admin(2).communicate(timeout=60)[0])
    capacity = stage.run(0, 128, seconds, int(8000 * seconds))
    admin = stage.probe_admin(seconds)
    overload = stage.run(capacity["good_per_s"] * factor, 4000, seconds, int(capacity["good_per_s"] * (seconds + 3) + 6000))
    readyz = serving.numbers(admin.communicate(timeout=60)[0])
    ended = time.monotonic()
    serving.wait_until(stage.server.is_ready, "ready again")
    ready_s = time.monotonic() - ended
    after = stage.run(0, 128, max(seconds // 2, 1), int(4000 * seconds))
    return {"capacity": capacity, "overload": overload, "readyz": readyz, "quiet": quiet, "after": after, "ready_again_s": ready_s}


def report(found, quiet=False):
    capacity, overload, after = found["capacity"], found["overload"], found["after"]
    shed_cpu_us = (overload["server_cpu_s"] - overload["status_2xx"] / per_cpu(capacity)) / max(overload["shed"], 1) * 1e6
    lines = {
        "capacity_per_s": capacity["good_per_s"],
        "capacity_cpu_us": 1e6 / per_cpu(capacity),
        "offered_of_capacity": overload["offered_per_s"] / capacity["good_per_s"],
        "goodput_of_capacity": overload["good_per_s"] / capacity["good_per_s"],
        "goodput_of_capacity_by_cpu": per_cpu(overload) / per_cpu(capacity),
        "shed_cpu_us": shed_cpu_us,
        "shed": overload["shed"],
        "shed_without_retry_after": overload["no_retry_after"],
        "shed_us_p50": overload.get("shed_us_p50", 0),
        "shed_us_p99": overload.get("shed_us_p99", 0),
        "shed_since_sent_us_p50": overload.get("shed_since_sent_us_p50", 0),
        "shed_since_sent_us_p99": overload.get("shed_since_sent_us_p99", 0),
        "unsent": overload["unsent"],
        "broken": overload["broken"],
        "readyz_before_us_p99": found["quiet"].get("good_us_p99", 0),
        "readyz_us_p50": found["readyz"].get("good_us_p50", 0),
        "readyz_us_p99": found["readyz"].get("good_us_p99", 0),
        "readyz_answered": found["readyz"]["status_2xx"],
        "memory_kb_capacity": capacity["memory_kb"],
        "memory_kb_overload": overload["memory_kb"],
        "after_of_capacity": after["good_per_s"] / capacity["good_per_s"],
        "after_of_capacity_by_cpu": per_cpu(after) / per_cpu(capacity),
        "ready_again_s": found["ready_again_s"],
        "load_average": os.getloadavg()[0],
    }
    for name, value in lines.items():
        if not quiet:
            print(f"{name} {value:.2f}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-s", "--seconds", type=int, default=10)
    parser.add_argument("-x", "--factor", type=float, default=10)
    parser.add_argument("arguments", nargs="*", help="more arguments of troupe serve")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, *options.arguments)
        try:
            report(measure(stage, options.seconds, options.factor))
            stage.server.end()
        finally:
            if stage.server.process.poll() is None:
                stage.server.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
