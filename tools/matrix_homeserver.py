#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A real Matrix homeserver, Synapse, on this machine's loopback address.

    tools/matrix_homeserver.py [--port N] [--data FOLDER] [--address FILE] [--build-only]

The first call puts Debian's Synapse and all it needs into build/matrix/synapse; it takes a minute and 300 MB. Later calls
start in seconds. The address is in build/matrix/url while it runs. Its users are ada and bob, their password is troupe-dev.
Ctrl-C or SIGTERM stops it; its database stays in build/matrix/data.

As a module it starts homeservers for tests, each with its own port, data and settings:

    with matrix_homeserver.Homeserver(folder, rc_message={"per_second": 1, "burst_count": 3}) as server:
        server.register("ada", "troupe-dev")

It needs no root and no chroot: the packages are unpacked, not installed, and Synapse runs by their own dynamic loader.
"""
import argparse
import base64
import contextlib
import ctypes
import fcntl
import glob
import hashlib
import hmac
import json
import os
import platform
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLACE = os.path.join(ROOT, "build/matrix")
SYNAPSE = os.path.join(PLACE, "synapse")
PORT = 8008
USERS = ("ada", "bob")
PASSWORD = "troupe-dev"
START_S = 120
STOP_S = 20
ANSWER_S = 60
NOT_NEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var")
UNLIMITED = {"per_second": 10000, "burst_count": 10000}
PR_SET_PDEATHSIG = 1


class Unavailable(Exception):
    """Synapse cannot be had here. The text is one sentence that says why."""


# ---- the build ------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def locked(path, why_not=None):
    """Holds a lock file. A second caller waits, or with `why_not` ends with that text."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if why_not else 0))
        except BlockingIOError as error:
            raise SystemExit(why_not) from error
        yield lock


def build():
    """Makes build/matrix/synapse, once. The folder gets its name when it is complete, so what an interrupted build left
    behind is recognised, and removed."""
    with locked(os.path.join(PLACE, ".lock")) as lock:
        if os.path.exists(SYNAPSE):
            return
        if not shutil.which("mmdebstrap"):
            raise Unavailable("mmdebstrap is not installed, and Synapse is built with it")
        fresh = SYNAPSE + ".new"
        shutil.rmtree(fresh, ignore_errors=True)
        print("Unpacking Synapse into build/matrix/synapse, once. This takes about a minute.", file=sys.stderr, flush=True)
        try:
            unpack(fresh, lock)
            for name in NOT_NEEDED:
                shutil.rmtree(os.path.join(fresh, name), ignore_errors=True)
            # Python compiles all modules now, and a set of packages that does not work is found before it has its name.
            done = subprocess.run([*python_of(fresh), "-c", "import synapse.app.homeserver"], env=environment_of(fresh),
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unavailable(f"the Synapse of Debian sid does not start: {last_line(done.stderr)}")
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        os.rename(fresh, SYNAPSE)


def unpack(folder, lock):
    """Debian 12 has no Synapse, sid has. The index of sid may be past its date on a mirror that lags."""
    command = ["mmdebstrap", "--mode=chrootless", "--variant=extract", "--include=matrix-synapse",
               '--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=APT::Install-Recommends "false"',
               '--aptopt=Acquire::Retries "2"', "sid", folder]
    log_path = os.path.join(PLACE, "build.log")
    if sys.stderr.isatty():  # mmdebstrap shows its progress
        status, why = run_group(command, lock), "its last lines say why"
    else:
        with open(log_path, "w", encoding="utf-8") as log:
            status = run_group(command, lock, stdout=log, stderr=log)
        with open(log_path, encoding="utf-8", errors="replace") as log:
            errors = [line for line in log.read().splitlines() if line.startswith("E: ")]
        why = errors[0][3:] if errors else f"see {os.path.relpath(log_path, ROOT)}"
    if status != 0:
        raise Unavailable(f"mmdebstrap cannot unpack Synapse: {why}")


def run_group(command, lock, **options):
    """The exit status of a command that ends, with its own children, when we do. It holds the lock as long as it lives."""
    # pylint: disable=subprocess-popen-preexec-fn  # there are no threads
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[lock.fileno()],
                          preexec_fn=die_with_parent, **options) as process:
        try:
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def die_with_parent():
    """Runs in a child before its program: SIGTERM comes when the parent dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def last_line(text):
    return (text.strip().splitlines() or ["no reason given"])[-1]


def libraries_of(folder):
    found = glob.glob(os.path.join(folder, f"usr/lib/{platform.machine()}-linux-gnu*"))
    if not found:
        raise Unavailable(f"{folder} has no libraries for {platform.machine()}")
    return found[0]


def python_of(folder):
    """The command of the Python that lies in the folder."""
    libraries = libraries_of(folder)
    loader = glob.glob(os.path.join(libraries, "ld-linux*.so.*"))[0]
    program = os.path.realpath(os.path.join(folder, "usr/bin/python3"))
    return [loader, "--library-path", libraries, "--argv0", program, program]


def environment_of(folder, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}
    return {**kept, "PYTHONHOME": os.path.join(folder, "usr"), **more}


def version():
    found = glob.glob(os.path.join(SYNAPSE, "usr/lib/python3/dist-packages/matrix_synapse-*"))
    return re.search(r"matrix_synapse-([\d.]+\d)", found[0]).group(1) if found else "of unknown version"


# ---- a homeserver ---------------------------------------------------------------------------------------------------

def free_port(wanted=0):
    """`wanted` if it is free, else another one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Homeserver:
    """Synapse on a loopback port, with SQLite and all its files in a folder. Its rate limits are so high that no test meets
    them. `settings` are top-level keys of homeserver.yaml that replace ours: rc_message for real 429s,
    refreshable_access_token_lifetime="2s" for soft logouts."""

    def __init__(self, folder, port=0, **settings):
        self.folder = os.path.abspath(folder)
        self.port = free_port(port)
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = settings
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def path(self, name):
        return os.path.join(self.folder, name)

    def secret(self, name):
        """Made at the first start and kept, so that tokens outlive a restart."""
        with contextlib.suppress(FileExistsError):
            with open(os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
        with open(self.path(name), encoding="ascii") as file:
            return file.read()

    def configure(self):
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        key = self.secret("signing.secret")
        with open(self.path("signing.key"), "w", encoding="ascii") as file:
            file.write(f"ed25519 a_1 {base64.b64encode(bytes.fromhex(key)).decode().rstrip('=')}\n")
        config = {
            "server_name": "localhost",
            "public_baseurl": self.url,
            "listeners": [{"type": "http", "port": self.port, "bind_addresses": ["127.0.0.1"], "tls": False,
                           "resources": [{"names": ["client"]}]}],
            "database": {"name": "sqlite3", "args": {"database": self.path("homeserver.db")}},
            "media_store_path": self.path("media"),
            "signing_key_path": self.path("signing.key"),
            "pid_file": self.path("homeserver.pid"),
            "registration_shared_secret": self.secret("registration.secret"),
            "macaroon_secret_key": self.secret("macaroon.secret"),
            "form_secret": self.secret("form.secret"),
            "enable_registration": True,
            "enable_registration_without_verification": True,
            "bcrypt_rounds": 4,
            "presence": {"enabled": False},
            "trusted_key_servers": [],
            "report_stats": False,
            **{f"rc_{name}": UNLIMITED for name in (
                "message", "registration", "admin_redaction", "joins_per_room", "key_requests", "third_party_invite",
                "media_create", "delayed_event_mgmt", "room_creation", "reports", "user_directory")},
            "rc_login": {name: UNLIMITED for name in ("address", "account", "failed_attempts")},
            "rc_joins": {name: UNLIMITED for name in ("local", "remote")},
            "rc_invites": {name: UNLIMITED for name in ("per_room", "per_user", "per_issuer")},
            **self.settings,
        }
        with open(self.path("homeserver.yaml"), "w", encoding="utf-8") as file:
            json.dump(config, file, indent=1)  # JSON is YAML

    def start(self):
        """Builds Synapse if need be, and returns when it answers. Raises Unavailable if it cannot be had."""
        build()
        self.configure()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, open(self.path("log"), "ab") as log:
            ready.bind("")  # an abstract name that the kernel chooses: Synapse reports there as it would to systemd
            environment = environment_of(SYNAPSE, NOTIFY_SOCKET="@" + ready.getsockname()[1:].decode())
            # pylint: disable=consider-using-with,subprocess-popen-preexec-fn  # it ends in stop(), or with this process
            self.process = subprocess.Popen(
                [*python_of(SYNAPSE), "-m", "synapse.app.homeserver", "-c", self.path("homeserver.yaml")],
                cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent)
            try:
                self.wait_until_ready(ready)
            except BaseException:
                self.stop()
                raise

    def wait_until_ready(self, ready):
        ended = os.pidfd_open(self.process.pid)
        try:
            found, _, _ = select.select([ready, ended], [], [], START_S)
        finally:
            os.close(ended)
        assert found, f"Synapse is not ready after {START_S} s: {self.log_end()}"
        assert ready in found, f"Synapse ended at its start: {self.log_end()}"
        status, _ = self.ask("GET", "/health")
        assert status == 200, f"Synapse answers {status} when asked for its health"

    def stop(self):
        """SIGTERM to this very process, and SIGKILL if it has not ended in time."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def log_end(self):
        with open(self.path("log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]

    def ask(self, method, path, body=None, token=None):
        """One request: the status and the JSON of the answer, or its text."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        request = urllib.request.Request(self.url + path, method=method, headers=headers,
                                         data=None if body is None else json.dumps(body).encode())
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=ANSWER_S) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        return status, json.loads(text) if text.startswith("{") else text

    def register(self, user, password=PASSWORD):
        """A user who exists already keeps the password that it has."""
        path = "/_synapse/admin/v1/register"
        _, answer = self.ask("GET", path)
        text = "\0".join((answer["nonce"], user, password, "notadmin"))
        proof = hmac.new(self.secret("registration.secret").encode(), text.encode(), hashlib.sha1).hexdigest()
        status, answer = self.ask("POST", path, {"nonce": answer["nonce"], "username": user, "password": password,
                                                 "admin": False, "mac": proof})
        assert status == 200 or answer.get("errcode") == "M_USER_IN_USE", f"registering {user}: {status} {answer}"


# ---- the program ----------------------------------------------------------------------------------------------------

def serve(data, port, address):
    """In the foreground, until a signal."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    server = Homeserver(data, port)
    with locked(os.path.join(data, ".lock"), f"a homeserver runs on {os.path.relpath(data)} already"), server:
        for user in USERS:
            server.register(user)
        with open(address + ".new", "w", encoding="ascii") as file:
            print(server.url, file=file)
        os.rename(address + ".new", address)
        try:
            print(f"Synapse {version()} at {server.url}, server name localhost\n"
                  f"users {' and '.join(USERS)}, password {PASSWORD}; log in {os.path.relpath(server.path('log'))}\n"
                  "Ctrl-C stops it.", flush=True)
            return wait_for_end(server.process, signals)
        finally:
            os.unlink(address)


def wait_for_end(process, signals):
    """0 after one of the signals, 1 if Synapse ended by itself."""
    wake, waker = socket.socketpair()
    with wake, waker:
        waker.setblocking(False)
        former = signal.set_wakeup_fd(waker.fileno())
        handlers = {number: signal.signal(number, lambda *_: None) for number in signals}
        ended = os.pidfd_open(process.pid)
        try:
            found, _, _ = select.select([wake, ended], [], [])
        finally:
            os.close(ended)
            signal.set_wakeup_fd(former)
            for number, handler in handlers.items():
                signal.signal(number, handler)
    if wake in found:
        return 0
    print("Synapse ended by itself; its log says why.", file=sys.stderr)
    return 1


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=PORT, help=f"another free one is chosen if it is in use ({PORT})")
    parser.add_argument("--data", default=os.path.join(PLACE, "data"), help="folder of the database (build/matrix/data)")
    parser.add_argument("--address", default=os.path.join(PLACE, "url"),
                        help="file that has the URL while it runs (build/matrix/url)")
    parser.add_argument("--build-only", action="store_true", help="do not start it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)  # as Ctrl-C: what was begun is cleaned up
    try:
        if options.build_only:
            build()
            return 0
        return serve(options.data, options.port, options.address)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 77
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
