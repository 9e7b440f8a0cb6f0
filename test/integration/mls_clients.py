#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Real MLS clients (ts-mls, and OpenMLS by mls-ts) through HTTP, on SQLite and on PostgreSQL.

The clients are in test/clients. Their packages go to build/clients, once; without node, npm or the packages this is
skipped. Names on the command line choose scenarios, TROUPE_RACE_S how long the race lasts on each database."""
import fcntl
import glob
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))
TROUPE = os.path.join(BUILD, "troupe")
SOURCE = os.path.join(ROOT, "test/clients")
CHAT = os.path.join(ROOT, "examples/chat")
CLIENTS = os.path.join(ROOT, "build/clients")
POSTGRES = "/usr/lib/postgresql/15/bin/"
NODE_MAJOR = 20
LIMIT_S = 30
LONG = os.environ.get("TROUPE_LONG") == "1"
RACE_S = int(os.environ.get("TROUPE_RACE_S") or (1800 if LONG else 60))
# All clients come from one address, and they do nothing but ask.
RATES = [f"--set=auth.{name}={1000000}" for name in
         ("rate_per_did", "burst_per_did", "rate_per_address", "burst_per_address")]


class Skip(Exception):
    pass


def environment(**more):
    """The tests' own variables must not be settings."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("TROUPE_")}, **more}


def install():
    """The packages, and copies of the programs beside them, where node looks for packages."""
    for program in ("node", "npm"):
        if not shutil.which(program):
            raise Skip(f"{program} is not installed")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(re.match(r"v(\d+)", version).group(1)) < NODE_MAJOR:
        raise Skip(f"node {NODE_MAJOR} or later is needed, this is {version}")
    os.makedirs(CLIENTS, exist_ok=True)
    with open(os.path.join(CLIENTS, ".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in [*glob.glob(SOURCE + "/*.mjs"), *glob.glob(CHAT + "/*.mjs"), SOURCE + "/.npmrc"]:
            shutil.copy(path, CLIENTS)
        with open(os.path.join(SOURCE, "package.json"), encoding="utf-8") as file:
            wanted = file.read()
        installed = os.path.join(CLIENTS, "package.json")
        if os.path.exists(installed + ".done"):
            with open(installed + ".done", encoding="utf-8") as file:
                if file.read() == wanted:
                    return
        shutil.copy(os.path.join(SOURCE, "package.json"), installed)
        done = subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=CLIENTS, capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            raise Skip("the npm packages of test/clients/package.json cannot be had")
        with open(installed + ".done", "w", encoding="utf-8") as file:
            file.write(wanted)


class Postgres:
    """A private server: a socket in its own directory, no network."""

    def __init__(self, folder):
        if not os.access(POSTGRES + "initdb", os.X_OK):
            raise Skip(f"PostgreSQL 15 is not installed: {POSTGRES}initdb is not there")
        self.folder = os.path.join(folder, "pg")
        os.mkdir(self.folder, 0o700)
        self.as_user = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            user = pwd.getpwnam("postgres")
            os.chmod(folder, 0o711)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data = os.path.join(self.folder, "data")
        subprocess.run([POSTGRES + "initdb", "--auth=trust", "--username=troupe", "--no-sync", "--encoding=UTF8",
                        "--locale=C", "-D", data], check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **self.as_user)
        # pylint: disable=consider-using-with  # it ends in end()
        self.process = subprocess.Popen(
            [POSTGRES + "postgres", "-D", data, "-k", self.folder, "-c", "listen_addresses=", "-c", "max_connections=40"],
            stderr=subprocess.PIPE, text=True, cwd=self.folder, **self.as_user)
        for line in self.process.stderr:
            if "ready to accept" in line:
                break
        else:
            raise AssertionError("PostgreSQL did not start")
        self.drain = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)
        self.url = f"postgresql:///postgres?host={self.folder}&user=troupe"

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(LIMIT_S)
        self.drain.wait(LIMIT_S)


class Server:
    def __init__(self, folder, *arguments):
        self.arguments = [*arguments, "--data", os.path.join(folder, "data")]
        self.log_path = os.path.join(folder, "log")
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        with open(self.log_path, "ab") as log:
            # pylint: disable=consider-using-with  # it ends in end()
            self.process = subprocess.Popen(
                [TROUPE, "serve", "--dev", "--listen", self.address, "--admin", "127.0.0.1:0", *RATES, *self.arguments],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True, env=environment())
        said = ""
        for line in self.process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        else:
            raise AssertionError(f"it did not start: {said}{self.log()}")
        self.address = re.search(r"public +http://(\S+)", said).group(1)

    def log(self):
        with open(self.log_path, encoding="utf-8") as file:
            return file.read()[-4000:]

    def kill_and_start(self):
        """As a power cut would: no word, no time. It comes back at the same address."""
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)
        self.start()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode


def run_scenarios(server, database, names):
    """Counts as [passed, failed]; the lines are printed under the database's name."""
    counts = [0, 0]
    with subprocess.Popen(["node", os.path.join(CLIENTS, "scenarios.mjs"), "http://" + server.address, *names],
                          stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, bufsize=1,
                          env=environment(RACE_S=str(RACE_S))) as clients:
        for line in clients.stdout:
            if line == "# kill the server\n":
                server.kill_and_start()
                clients.stdin.write("started\n")
                continue
            found = re.match(r"(ok|not ok) - (.*)", line)
            if found:
                counts[found.group(1) != "ok"] += 1
                print(f"{found.group(1)} - {database}: {found.group(2)}", flush=True)
            elif not re.match(r"\d+ passed", line):
                print(line, end="", flush=True)
    if clients.returncode != (counts[1] > 0):
        print(f"not ok - {database}: the clients ended with status {clients.returncode}")
        counts[1] += 1
    return counts


def run_chat(server, database):
    done = subprocess.run(["node", os.path.join(CLIENTS, "talk.mjs"), "http://" + server.address], capture_output=True,
                          text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL, env=environment())
    good = done.returncode == 0 and "bob reads:   Hello Bob!" in done.stdout and "alice reads: Hello Alice!" in done.stdout
    print(f"{'ok' if good else 'not ok'} - {database}: examples/chat lets two people talk")
    if not good:
        print(done.stdout + done.stderr)
    return [good, not good]


def run_on(database, folder, names):
    postgres = Postgres(folder) if database == "postgresql" else None
    try:
        server = Server(folder, *(["--db", postgres.url] if postgres else []))
        counts = [run_scenarios(server, database, names)]
        if not names:
            counts.append(run_chat(server, database))
        status = server.end()
        counts.append([status == 0, status != 0])
        print(f"{'ok' if status == 0 else 'not ok'} - {database}: the server ends well" + ("" if status == 0 else f": {status}"))
        if status != 0 or any(failed for _, failed in counts):
            print(server.log())
    finally:
        if postgres:
            postgres.end()
    return [sum(column) for column in zip(*counts)]


def main():
    try:
        install()
    except Skip as reason:
        print(reason)
        return 77
    passed = failed = skipped = 0
    databases = ["sqlite", "postgresql"]
    names = [name for name in sys.argv[1:] if name not in databases]
    for database in [name for name in databases if name in sys.argv[1:]] or databases:
        with tempfile.TemporaryDirectory(prefix="troupe-clients-") as folder:
            try:
                counts = run_on(database, folder, names)
                passed, failed = passed + counts[0], failed + counts[1]
            except Skip as reason:
                print(f"ok - {database} # SKIP {reason}")
                skipped += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
