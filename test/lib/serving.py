# SPDX-License-Identifier: Apache-2.0
"""What the scripts that run `troupe serve` share: a server, a PostgreSQL of our own, callers with tokens, and how cases
are run. Not a test itself."""
import fcntl
import glob
import http.client
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))
TROUPE = os.path.join(BUILD, "troupe")
LIMIT_S = 30
LONG = os.environ.get("TROUPE_LONG", "") not in ("", "0")
PREFIX = "blue.catbird.mls."
SUITE = "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"
# Load of a test comes from one address and few issuers: the rate limits are not what it is about.
FAST = [word for name in ("rate_per_did", "burst_per_did", "rate_per_address", "burst_per_address",
                          "sign_ins_per_minute", "sign_in_burst")
        for word in ("--set", f"auth.{name}=1000000")]


def environment(**more):
    """The tests' own variables must not be settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TROUPE_")}
    return {**kept, **more}


def wait_until(is_so, what, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"after {limit_s} s still not: {what}"
        threading.Event().wait(0.01)


class Server:
    """`troupe serve` on ports that the system chose, or on the ones given; its log is kept in a file."""

    alive = []

    def __init__(self, folder, *arguments, listen="127.0.0.1:0", admin="127.0.0.1:0", before=(), **more):
        self.folder = folder
        self.data = os.path.join(folder, "data")
        self.log_path = os.path.join(folder, "log")
        with open(self.log_path, "ab") as log:
            # pylint: disable=consider-using-with  # it ends in end() or kill()
            self.process = subprocess.Popen(
                [*before, TROUPE, "serve", "--listen", listen, "--admin", admin, "--data", self.data, *arguments],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True, env=environment(**more))
        Server.alive.append(self.process)
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if line.startswith("Ctrl-C"):
                break
        else:
            raise AssertionError(f"it did not start: {self.said}{self.log()[-2000:]}")
        self.public = re.search(r"public +https?://(\S+)", self.said).group(1)
        self.admin = re.search(r"admin +http://(\S+)", self.said).group(1)

    @property
    def address(self):
        host, port = self.public.rsplit(":", 1)
        return host, int(port)

    def connect(self):
        if not self.public.startswith("unix:"):
            return socket.create_connection(self.address)
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.public[len("unix:"):])
        return client

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def ask(self, path, method="GET", admin=False, headers=None, body=None):
        """Status, headers (lower case) and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.admin if admin else self.public, timeout=LIMIT_S)
        try:
            connection.request(method, path, headers=headers or {}, body=body)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()

    def is_well(self):
        return self.ask("/xrpc/_health")[0] == 200

    def is_ready(self):
        return self.ask("/readyz", admin=True)[0] == 200

    def metric(self, name):
        """The sum over the labels."""
        body = self.ask("/metrics", admin=True)[2]
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)", body, re.MULTILINE)
        return sum(float(value) for value in values)

    def memory_kb(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=LIMIT_S)
        Server.alive.remove(self.process)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=LIMIT_S)
        Server.alive.remove(self.process)
        assert self.process.returncode == 0, f"exit status {self.process.returncode}: {self.log()[-2000:]}"


class Postgres:
    """A PostgreSQL of our own on a unix socket in a folder of its own; as root it runs as `postgres` or `nobody`."""

    alive = []

    def __init__(self, folder, before=(), **more):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
        self.bin = os.path.dirname(found[-1]) if found else None
        self.folder = os.path.join(folder, "pg")
        self.data = os.path.join(self.folder, "data")
        self.url = f"postgresql:///postgres?host={self.folder}&user=troupe"
        self.environment = {**os.environ, **more}
        self.before = before
        self.user = None
        os.mkdir(self.folder, 0o700)
        if os.geteuid() == 0:
            os.chmod(folder, 0o755)
            self.user = next((name for name in ("postgres", "nobody") if has_user(name)), None)
            shutil.chown(self.folder, self.user)

    def run(self, *command):
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=self.folder, user=self.user,
                       extra_groups=[] if self.user else None, env=self.environment)

    def make(self):
        """Where scripts run together (tools/run-tests.py) the first leaves a fresh database behind for the others: a copy
        takes less than half the time."""
        cache = os.environ.get("TROUPE_TEST_CACHE")
        if cache:
            self.copy(os.path.join(cache, "postgres-of-scripts"))
        else:
            self.initialize(self.data)
        self.start()

    def initialize(self, data):
        self.run(f"{self.bin}/initdb", "-D", data, "-U", "troupe", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")

    def copy(self, model):
        """Who comes while the model is made, waits for the lock."""
        with open(model + ".lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(model):
                made = model + ".new"
                os.mkdir(made, 0o700)
                if self.user:
                    shutil.chown(made, self.user)
                self.initialize(made)
                os.rename(made, model)
        self.run("cp", "-r", model, self.data)

    def start(self):
        self.run(*self.before, f"{self.bin}/pg_ctl", "-D", self.data, "-w", "-l", os.path.join(self.folder, "log"), "-o",
                 f"-c listen_addresses= -k {self.folder}", "start")
        Postgres.alive.append(self)

    def stop(self, mode="immediate"):
        Postgres.alive.remove(self)
        self.run(f"{self.bin}/pg_ctl", "-D", self.data, "-m", mode, "stop")


class Databases:
    """One PostgreSQL for all cases of a script, which is made when the first needs it, with a database for each."""

    place = postgres = None
    count = 0

    @classmethod
    def make(cls):
        """The URL of an empty database, or None without PostgreSQL."""
        if cls.postgres is None:
            cls.place = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with  # it ends in end()
            postgres = Postgres(cls.place.name)
            if not postgres.bin:
                return None
            postgres.make()
            Postgres.alive.remove(postgres)  # not the case's
            cls.postgres = postgres
        cls.count += 1
        name = f"case{cls.count}"
        cls.postgres.run(f"{cls.postgres.bin}/createdb", "-h", cls.postgres.folder, "-U", "troupe", name)
        return cls.postgres.url.replace("/postgres?", f"/{name}?")

    @classmethod
    def end(cls):
        if cls.postgres is not None:
            Postgres.alive.append(cls.postgres)
            cls.postgres.stop()
        if cls.place is not None:
            cls.place.cleanup()
        cls.place = cls.postgres = None


def on_both(*cases):
    """Each of them twice, as NAME_on_sqlite and NAME_on_postgresql. They take the arguments of the server behind their
    folder."""
    def of(case, database):
        def run(folder):
            if database == "sqlite":
                return case(folder)
            url = Databases.make()
            return case(folder, "--db", url) if url else "PostgreSQL is not installed"
        run.__name__ = f"{case.__name__}_on_{database}"
        return run
    return [of(case, database) for case in cases for database in ("sqlite", "postgresql")]


def has_user(name):
    try:
        pwd.getpwnam(name)
        return True
    except KeyError:
        return False


def tokens(folder, call, count=1, key="ada"):
    """Bearer tokens for a call, of an identity that is made at its first use. They live for a minute."""
    made = []
    while len(made) < count:
        done = subprocess.run([TROUPE, "dev-token", "--key", os.path.join(folder, key + ".key"), "--lxm", PREFIX + call,
                               "--count", str(min(count - len(made), 10000))],
                              capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment())
        made += done.stdout.split()
    return made


def call(server, folder, name, body=None, query="", token=None, connection=None):
    """One XRPC call as ada: status and JSON. With a connection of the caller's it stays open."""
    own = connection or http.client.HTTPConnection(server.public, timeout=LIMIT_S)
    try:
        own.request("GET" if body is None else "POST", f"/xrpc/{PREFIX}{name}{query}",
                    headers={"Authorization": "Bearer " + (token or tokens(folder, name)[0]),
                             "Content-Type": "application/json"},
                    body=None if body is None else json.dumps(body))
        answer = own.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        if connection is None:
            own.close()


def create_convo(server, folder, name):
    status, answer = call(server, folder, "createConvo", {"groupId": name, "cipherSuite": SUITE})
    assert status == 200, (status, answer)


def compile_drive(folder):
    """The open-loop client, or None without a compiler."""
    path = os.path.join(folder, "drive")
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        return None
    subprocess.run([compiler, "-std=c17", "-O2", "-D_GNU_SOURCE", "-o", path,
                    os.path.join(ROOT, "bench/overload/drive.c")], check=True)
    return path


def numbers(text):
    """The `name value` lines of a program as a dictionary."""
    return {name: float(value) for name, value in re.findall(r"^(\w+) (-?[\d.]+)$", text, re.MULTILINE)}


def run_cases(cases):
    """Each case is a function of a folder of its own; what it returns is why it was skipped."""
    if not os.access(TROUPE, os.X_OK):
        print(f"there is no {TROUPE}: run make release")
        return 77
    wanted = sys.argv[1:]
    try:
        return run_each([case for case in cases if not wanted or case.__name__ in wanted])
    finally:
        Databases.end()


def run_each(cases):
    passed = failed = skipped = 0
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                reason = case(folder)
            except Exception as error:  # pylint: disable=broad-exception-caught  # it is the verdict
                failed += 1
                print(f"not ok - {case.__name__}: {type(error).__name__}: {error}", flush=True)
                continue
            finally:
                while Server.alive:  # a case that failed leaves its servers behind
                    process = Server.alive.pop()
                    process.kill()
                    process.wait()
                while Postgres.alive:
                    Postgres.alive[-1].stop()
        if reason:
            skipped += 1
            print(f"ok - {case.__name__} # SKIP {reason}", flush=True)
        else:
            passed += 1
            print(f"ok - {case.__name__}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0
