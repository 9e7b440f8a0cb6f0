#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Real MLS clients (ts-mls, and OpenMLS by mls-ts) through HTTP, on SQLite and on PostgreSQL.

The clients are in test/clients. Their packages go to build/clients, once; without node, npm or the packages this is
skipped. What they do most is done once more with public handshakes, on a server in assisted mode. On the command line:
databases and parts of scenarios' names, of the first run alone. TROUPE_RACE_S is how long the race lasts on each
database: a minute, and half an hour in the long run."""
import glob
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
# pylint: disable=wrong-import-position,import-error
import npm
from npm import Skip
from serving import FAST, LIMIT_S, LONG, ROOT, TROUPE, Postgres, Server, environment

SOURCE = os.path.join(ROOT, "test/clients")
CHAT = os.path.join(ROOT, "examples/chat")
CLIENTS = os.path.join(ROOT, "build/clients")
# What members do in a group whose handshakes are public, on a server that wants them so.
ASSISTED = ["two clients create, add, join", "of two commits for one epoch one wins", "a late joiner replays",
            "a removed member sees the commit", "comes back by a new Welcome", "comes back by a resync",
            "an invited member joins", "a message in the commit's bundle", "a public proposal that was sent by itself"]
RACE_S = int(os.environ.get("TROUPE_RACE_S") or (1800 if LONG else 60))


def install():
    """The packages, and copies of the programs beside them, where node looks for packages."""
    if not os.access(TROUPE, os.X_OK):
        raise Skip(f"there is no {TROUPE}: run make release")
    return npm.install(CLIENTS, SOURCE, [*glob.glob(SOURCE + "/*.mjs"), *glob.glob(CHAT + "/*.mjs")])


class Bench:
    """A server on a database, and how many claims held, did not, or could not be looked at."""

    def __init__(self, node, database, folder, is_assisted):
        self.node, self.database, self.folder = node, database, folder
        self.counts = {"ok": 0, "not ok": 0, "skip": 0}
        self.is_assisted = is_assisted
        self.options = ["--dev", "--set", "log.level=warn", *FAST]
        if is_assisted:
            self.options += ["--set", "delivery.mode=assisted"]
        if database == "postgresql":
            postgres = Postgres(folder)
            if postgres.bin is None:
                raise Skip("PostgreSQL is not installed")
            postgres.make()
            self.options += ["--db", postgres.url]
        self.server = Server(folder, *self.options)

    def say(self, verdict, name):
        self.counts["skip" if "# SKIP" in name else verdict] += 1
        print(f"{verdict} - {self.database}{', assisted' if self.is_assisted else ''}: {name}", flush=True)

    def kill_and_start(self):
        """As a power cut would: no word, no time. It comes back at the same address."""
        self.server.kill()
        self.server = Server(self.folder, *self.options, listen=self.server.public)

    def run_scenarios(self, names):
        with subprocess.Popen([self.node, "--experimental-websocket", "--no-warnings",
                               os.path.join(CLIENTS, "scenarios.mjs"), "http://" + self.server.public, *names],
                              stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, bufsize=1,
                              env=environment(RACE_S=str(RACE_S), PUBLIC="1" if self.is_assisted else "")) as clients:
            for line in clients.stdout:
                found = re.match(r"(ok|not ok) - (.*)", line)
                if line == "# kill the server\n":
                    self.kill_and_start()
                    clients.stdin.write("started\n")
                elif found:
                    self.say(*found.groups())
                elif not re.match(r"\d+ passed", line):
                    print(line, end="", flush=True)
        if clients.returncode != (self.counts["not ok"] > 0):
            self.say("not ok", f"the clients ended with status {clients.returncode}")

    def run_chat(self):
        done = subprocess.run([self.node, os.path.join(CLIENTS, "talk.mjs"), "http://" + self.server.public],
                              capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL)
        good = (done.returncode == 0 and "bob reads:   Hello Bob!" in done.stdout and
                "alice reads: Hello Alice!" in done.stdout)
        if not good:
            print(done.stdout + done.stderr)
        self.say("ok" if good else "not ok", "examples/chat lets two people talk")

    def end(self):
        try:
            self.server.end()
            self.say("ok", "the server ends well")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.say("not ok", f"the server ends well: {error}")


def run_on(node, database, names, is_assisted=False):
    with tempfile.TemporaryDirectory(prefix="troupe-clients-") as folder:
        try:
            bench = Bench(node, database, folder, is_assisted)
            bench.run_scenarios(names)
            if not names:
                bench.run_chat()
            bench.end()
            if bench.counts["not ok"] > 0:
                print(bench.server.log()[-4000:])
            return bench.counts
        except Skip as reason:
            print(f"ok - {database} # SKIP {reason}")
            return {"ok": 0, "not ok": 0, "skip": 1}
        finally:
            while Server.alive:
                process = Server.alive.pop()
                process.kill()
                process.wait()
            while Postgres.alive:
                Postgres.alive[-1].stop()


def main():
    try:
        node = install()
    except Skip as reason:
        print(reason)
        return 77
    databases = ["sqlite", "postgresql"]
    names = [name for name in sys.argv[1:] if name not in databases]
    chosen = [name for name in databases if name in sys.argv[1:]] or databases
    counts = [run_on(node, database, names) for database in chosen]
    if not names:
        counts += [run_on(node, database, ASSISTED, is_assisted=True) for database in chosen]
    passed, failed, skipped = (sum(count[key] for count in counts) for key in ("ok", "not ok", "skip"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
