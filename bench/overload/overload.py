#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""bench/overload/overload.py: `troupe serve` at ten times what it can do.

Capacity is what a closed loop of 128 connections gets through: numbered addMembers of -m members, each with a token of
its own to verify and a durable unit to store. One member is the cheapest change there is; twenty are a group that is made.
Then requests come at ten times that rate, due at even distances whatever the server does (drive.c), on more connections
than http.in_flight_max, while a second client asks the admin listener for /readyz fifty times a second. Then capacity
again, and so on for -n rounds of -s seconds each. What is stored grows meanwhile and a shared machine changes, so the
goodput of a round is given of the mean of the capacities before and after it, and the figure is the median of the rounds.
The server has one core and the clients another, so that the clients take nothing from it; other work on the machine does,
so each figure that can be is also given per second of the server's CPU time. Two prices are taken in the same run, of a closed loop of as many connections: of a refusal when
nothing else is done, and of the same bytes from a server that does nothing (bare.c). Where `factor` times that price is
a good part of a request's, no server can keep all of its capacity: goodput_bound is what would be left.
Prints `name value` lines."""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../test/lib"))
import serving  # pylint: disable=wrong-import-position

MEMBERS_MAX = 600  # of a conversation: it takes a thousand
ADDS_PER_S = 12000  # more than there will be
LOOP = 128  # connections of a closed loop
CROWD = 4000  # of the overload
ROUND_S = 15  # a token lives for a minute: what takes longer is done in rounds with tokens of their own
CALL = "/xrpc/" + serving.PREFIX
PATH = CALL + "addMembers"
CORES = sorted(os.sched_getaffinity(0))
RESTLESS = ["-b"] if len(CORES) > 1 else []


def on_core(index):
    """Words that start a program on one core; none where there is only one."""
    return ("taskset", "-c", str(CORES[index])) if len(CORES) > 1 else ()


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kb(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


class Load:
    """The driver against one address, and what the process behind it takes meanwhile."""

    def __init__(self, folder, address, pid):
        self.folder, self.address, self.pid = folder, address, pid
        self.drive = serving.compile_drive(folder)
        self.adds = 0
        self.convos = 1
        self.members = 1  # of a request
        self.files = 0

    def write_lines(self, count):
        """Requests for the driver: fresh tokens and members nobody has added."""
        self.files += 1
        path = os.path.join(self.folder, f"lines-{self.files % 2}")
        with open(path, "w", encoding="ascii") as file:
            for token in serving.tokens(self.folder, "addMembers", count):
                dids = ",".join(f'"did:example:{self.adds}.{number}"' for number in range(self.members))
                file.write(f'{token} {{"convoId":"convo-{self.adds % self.convos}","didList":[{dids}]}}\n')
                self.adds += 1
        return path

    def run_file(self, path, rate, connections, seconds):
        """The driver's numbers, the server's CPU time and the most memory it was seen to have."""
        before_s = cpu_s(self.pid)
        # pylint: disable=consider-using-with  # it is waited for below
        process = subprocess.Popen([*on_core(-1), self.drive, self.address, *RESTLESS, "-p", PATH, "-f", path, "-r", str(rate),
                                    "-c", str(connections), "-s", str(seconds)], stdout=subprocess.PIPE, text=True)
        most_kb = memory_kb(self.pid)
        while process.poll() is None:
            most_kb = max(most_kb, memory_kb(self.pid))
            threading.Event().wait(0.05)
        found = serving.numbers(process.stdout.read())
        found.update(memory_kb=most_kb, server_cpu_s=cpu_s(self.pid) - before_s, dry=process.returncode == 3)
        return found

    def run(self, rate, connections, seconds, lines):
        return self.run_file(self.write_lines(lines), rate, connections, seconds)

    def run_rounds(self, rate, connections, seconds, lines_per_s):
        """As long as is wanted: while a round runs, the lines of the next one are written."""
        rounds = max(1, round(seconds / ROUND_S))
        round_s = max(1, round(seconds / rounds))
        lines = int(lines_per_s * (round_s + 3) + 6000)
        found, path = [], self.write_lines(lines)
        for number in range(rounds):
            following = []
            writer = threading.Thread(target=lambda to: to.append(self.write_lines(lines)), args=(following,))
            if number + 1 < rounds:
                writer.start()
            found.append(self.run_file(path, rate, connections, round_s))
            if number + 1 < rounds:
                writer.join()
                path = following[0]
        return merged(found)


def merged(rounds):
    """Counts add up; of times and memory the worst round counts."""
    def of(name, way):
        return way(found[name] for found in rounds if name in found)

    whole = {}
    for name in {name for found in rounds for name in found}:
        is_worst = name.endswith(("_p50", "_p99", "_max", "_kb")) or name == "dry"
        whole[name] = of(name, max if is_worst else sum)
    for rate, count in (("offered_per_s", "sent"), ("good_per_s", "status_2xx"), ("shed_per_s", "shed")):
        whole[rate] = whole[count] / whole["seconds"]
    return whole


class Stage(Load):
    """A server with conversations to add members to, enough for `rounds` of `seconds` and what is around them."""

    def __init__(self, folder, *arguments, seconds, rounds=1, members=1, is_unix=False):
        self.is_unix = is_unix
        self.server = serving.Server(folder, "--dev", *serving.FAST, "--set", "server.workers=1", "--set",
                                     "http.access_log=off", *arguments, before=on_core(0), listen=listen(folder, is_unix))
        super().__init__(folder, self.server.public, self.server.process.pid)
        self.members = members
        # More members at once cost more, so there will be fewer requests.
        members_per_s = ADDS_PER_S * members / (1 + members / 8)
        busy_s = rounds * seconds + (rounds + 1) * min(seconds, ROUND_S) + 2
        self.convos = max(100, int(members_per_s * busy_s / MEMBERS_MAX))
        path = os.path.join(folder, "convos")
        with open(path, "w", encoding="ascii") as file:
            for number, token in enumerate(serving.tokens(folder, "createConvo", self.convos)):
                file.write(f'{token} {{"groupId":"convo-{number}","cipherSuite":"{serving.SUITE}"}}\n')
        done = subprocess.run([self.drive, self.address, "-p", CALL + "createConvo", "-f", path, "-r", "0", "-c", "16",
                               "-s", "60"], stdout=subprocess.PIPE, text=True, check=False)
        made = serving.numbers(done.stdout)
        assert made["status_2xx"] == self.convos, made

    def probe_admin(self, seconds):
        """Fifty questions a second to the admin listener, from a client of its own."""
        # pylint: disable=consider-using-with  # the caller waits for it
        return subprocess.Popen([*on_core(-1), self.drive, self.server.admin, "-p", "/readyz", "-c", "2", "-r", "50",
                                 "-s", str(seconds)], stdout=subprocess.PIPE, text=True)


def listen(folder, is_unix):
    return "unix:" + os.path.join(folder, "socket") if is_unix else "127.0.0.1:0"


# ---- prices ----------------------------------------------------------------------------------------------------------


def price_us(load, path, seconds):
    found = load.run_file(path, 0, LOOP, seconds)
    return found["server_cpu_s"] * 1e6 / max(found["shed"], 1)


def trickle(client, ended):
    """Keeps the body of a request coming, so that it keeps its place."""
    while not ended.wait(0.2):
        client.sendall(b" " * 400)


def refusal_us(folder, seconds, is_unix):
    """CPU time of a refusal: one place, and somebody has it."""
    folder = os.path.join(folder, "refusal")
    os.mkdir(folder)
    server = serving.Server(folder, "--dev", *serving.FAST, "--set", "server.workers=1", "--set", "http.access_log=off",
                            "--set", "http.in_flight_max=1", before=on_core(0), listen=listen(folder, is_unix))
    load = Load(folder, server.public, server.process.pid)
    token = serving.tokens(folder, "addMembers")[0]
    ended = threading.Event()
    with server.connect() as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
                       "Content-Length: 60000\r\n\r\n ".encode())
        serving.wait_until(lambda: server.metric("troupe_http_in_flight") >= 1, "a request in its place")
        thread = threading.Thread(target=trickle, args=(client, ended))
        thread.start()
        try:
            return price_us(load, load.write_lines(2000), seconds)
        finally:
            ended.set()
            thread.join()
            server.kill()


def bare_us(load, folder, seconds, is_unix):
    """CPU time of the same bytes from a server that does nothing."""
    program = os.path.join(folder, "bare")
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-O2", "-D_GNU_SOURCE", "-o", program,
                    os.path.join(HERE, "bare.c")], check=True)
    where = [os.path.join(folder, "bare.socket")] if is_unix else []
    with subprocess.Popen([*on_core(0), program, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        bare = Load(folder, process.stdout.readline().strip(), process.pid)
        found = price_us(bare, load.write_lines(2000), seconds)
        process.stdin.close()
    return found


# ---- the run ---------------------------------------------------------------------------------------------------------


def per_cpu(found):
    return found["status_2xx"] / max(found["server_cpu_s"], 0.01)


def all_went_well(found):
    """A run that met anything but answers and refusals says nothing about speed."""
    assert not found["dry"], "the requests were used up: ADDS_PER_S is too small"
    assert found["status_4xx"] == 0 and found["status_5xx"] == found["shed"], found
    return found


def measure(stage, seconds, factor=10, rounds=1, with_prices=True):
    """Prices, then capacity and overload in turns."""
    prices = {}
    if with_prices:
        prices = {"refusal_us": refusal_us(stage.folder, 2, stage.is_unix),
                  "bare_us": bare_us(stage, stage.folder, 2, stage.is_unix)}
    stage.run(0, LOOP, 1, ADDS_PER_S)  # warm
    quiet = serving.numbers(stage.probe_admin(2).communicate(timeout=60)[0])
    short_s = min(seconds, ROUND_S)
    capacities = [all_went_well(stage.run(0, LOOP, short_s, ADDS_PER_S * short_s))]
    overloads, readyz, ready_s = [], [], 0
    for _ in range(rounds):
        capacity = capacities[-1]["good_per_s"]
        admin = stage.probe_admin(seconds)
        overloads.append(all_went_well(stage.run_rounds(capacity * factor, CROWD, seconds, capacity)))
        readyz.append(serving.numbers(admin.communicate(timeout=60)[0]))
        ended = time.monotonic()
        serving.wait_until(stage.server.is_ready, "ready again")
        ready_s = max(ready_s, time.monotonic() - ended)
        capacities.append(all_went_well(stage.run(0, LOOP, short_s, ADDS_PER_S * short_s)))
    return {"capacity": merged(capacities), "overload": merged(overloads), "readyz": merged(readyz), "quiet": quiet,
            "before": capacities[0], "first": overloads[0], "after": capacities[-1], "goodputs": goodputs(capacities, overloads),
            "ready_again_s": ready_s, "factor": factor, **prices}


def goodputs(capacities, overloads):
    """Of each round, of the mean of the capacities around it."""
    return [found["good_per_s"] * 2 / (before["good_per_s"] + after["good_per_s"])
            for before, found, after in zip(capacities, overloads, capacities[1:])]


def bound(found):
    """Goodput ÷ capacity of a server whose refusals cost no more than bare.c's answers."""
    capacity = found["capacity"]
    work_s, bare_s = 1 / per_cpu(capacity), found["bare_us"] / 1e6
    left = 1 - found["factor"] * capacity["good_per_s"] * bare_s
    return min(1.0, left / (work_s - bare_s) / capacity["good_per_s"])


def report(found, quiet=False):
    capacity, overload, before, after = (found[name] for name in ("capacity", "overload", "before", "after"))
    shed_cpu_us = (overload["server_cpu_s"] - overload["status_2xx"] / per_cpu(capacity)) / max(overload["shed"], 1) * 1e6
    lines = {
        "capacity_per_s": capacity["good_per_s"],
        "capacity_cpu_us": 1e6 / per_cpu(capacity),
        "capacity_core": capacity["server_cpu_s"] / capacity["seconds"],
        "overload_core": overload["server_cpu_s"] / overload["seconds"],
        "offered_of_capacity": overload["offered_per_s"] / capacity["good_per_s"],
        "goodput_of_capacity": statistics.median(found["goodputs"]),
        "goodput_least": min(found["goodputs"]),
        "goodput_most": max(found["goodputs"]),
        "goodput_of_capacity_by_cpu": per_cpu(overload) / per_cpu(capacity),
        "shed_cpu_us": shed_cpu_us,
        "good_us_p50": overload.get("good_us_p50", 0),
        "good_us_p99": overload.get("good_us_p99", 0),
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
        # Of the first round: the members that are added stay in memory with their conversations.
        "memory_kb_before": before["memory_kb"],
        "memory_kb_overload": found["first"]["memory_kb"],
        "memory_kb_end": capacity["memory_kb"],
        "capacity_after_of_before": after["good_per_s"] / before["good_per_s"],
        "capacity_after_of_before_by_cpu": per_cpu(after) / per_cpu(before),
        "ready_again_s": found["ready_again_s"],
        "load_average": os.getloadavg()[0],
    }
    if "bare_us" in found:
        lines.update(refusal_us=found["refusal_us"], bare_us=found["bare_us"], goodput_bound=bound(found))
    for name, value in lines.items():
        if not quiet:
            print(f"{name} {value:.2f}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("-s", "--seconds", type=int, default=4)
    parser.add_argument("-x", "--factor", type=float, default=10)
    parser.add_argument("-m", "--members", type=int, default=1)
    parser.add_argument("-u", "--unix", action="store_true", help="through a unix socket, as behind a proxy on the machine")
    parser.add_argument("arguments", nargs="*", help="more arguments of troupe serve")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, *options.arguments, seconds=options.seconds, rounds=options.rounds, members=options.members,
                      is_unix=options.unix)
        try:
            report(measure(stage, options.seconds, options.factor, options.rounds))
            stage.server.end()
        finally:
            if stage.server.process.poll() is None:
                stage.server.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
