#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe serve` as it ships: it starts, is healthy, is measurable, reloads, drains and stays in its sandbox."""
import glob
import http.client
import http.server
import json
import os
import pwd
import queue
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/release"))
TROUPE = os.path.join(BUILD, "troupe")
LIMIT_S = 30
SERVICE = ("--set", "auth.service_did=did:web:chat.example.org")  # needed without --dev
SHIPPED = "Try a first request:"


def environment(**more):
    """The tests' own variables must not be settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TROUPE_")}
    return {**kept, **more}


def run(*arguments, status=0, **more):
    done = subprocess.run([TROUPE, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False,
                          env=environment(**more), stdin=subprocess.DEVNULL)
    assert done.returncode == status, f"{arguments}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


class Server:
    """A server on ports that the system chose; its log is kept in a file."""

    alive = []

    def __init__(self, folder, *arguments, **more):
        self.data = os.path.join(folder, "data")
        self.log_path = os.path.join(folder, "log")
        # pylint: disable=consider-using-with  # it ends in end()
        self.log_file = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            [TROUPE, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", self.data,
             *(() if "--dev" in arguments else SERVICE), *arguments],
            stdout=subprocess.PIPE, stderr=self.log_file, stdin=subprocess.DEVNULL, text=True,
            env=environment(**more))
        Server.alive.append(self.process)
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if line.startswith("Ctrl-C"):
                break
        else:
            raise AssertionError(f"it did not start: {self.said}{self.log()}")
        self.public = re.search(r"public +https?://(\S+)", self.said).group(1)
        self.admin = re.search(r"admin +http://(\S+)", self.said).group(1)

    def log(self):
        with open(self.log_path, encoding="utf-8") as file:
            return file.read()

    def wait_log(self, text):
        """Until the log says it; the deadline is the test's."""
        for _ in range(LIMIT_S * 100):
            if text in self.log():
                return
            assert self.process.poll() is None, f"it ended: {self.log()}"
            threading.Event().wait(0.01)
        raise AssertionError(f"the log does not say {text!r}:\n{self.log()}")

    def ask(self, path, method="GET", admin=False, token=None, headers=None):
        connection = http.client.HTTPConnection(self.admin if admin else self.public, timeout=LIMIT_S)
        headers = dict(headers or {})
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    def token(self):
        with open(os.path.join(self.data, "admin.token"), encoding="utf-8") as file:
            return file.read().strip()

    def end(self, number=signal.SIGTERM, status=0):
        if number and self.process.poll() is None:
            self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=LIMIT_S)
        self.log_file.close()
        assert self.process.returncode == status, f"exit status {self.process.returncode}: {said}{self.log()}"


def starts_and_says_what_to_copy(folder):
    server = Server(folder, "--dev")
    command = re.search(r"^ +(curl .*)$", server.said, re.MULTILINE).group(1)
    assert SHIPPED in server.said and "did:web:localhost" in server.said, server.said
    assert "\033" not in server.said, "there are colours in a pipe"
    if shutil.which("curl"):
        said = subprocess.run(command.split() + ["-s"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        assert json.loads(said.stdout)["version"], said.stdout
    status, body = server.ask("/xrpc/_health")
    version = run("--version").stdout.split()[1]
    assert (status, json.loads(body)) == (200, {"version": version}), body
    server.end()
    assert 'event="the server has drained" cut=0' in server.log(), server.log()
    assert not os.path.exists(os.path.join(server.data, "admin.address"))


def at_a_unix_socket_the_first_request_works_too(folder):
    if not shutil.which("curl"):
        return "curl is not installed"
    server = Server(folder, "--dev", "--set", f"server.listen=unix:{folder}/socket")
    command = re.search(r"^ +(curl .*)$", server.said, re.MULTILINE).group(1)
    said = subprocess.run(command.split() + ["-s"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert json.loads(said.stdout)["version"], said.stdout
    server.end()
    return None


def the_access_log_tells_what_was_sent(folder):
    server = Server(folder)
    connection = http.client.HTTPConnection(server.public, timeout=LIMIT_S)
    for method in ("GET", "HEAD"):
        connection.request(method, "/xrpc/_health")
        answer = connection.getresponse()
        length = int(answer.getheader("Content-Length"))
        assert answer.status == 200 and length > 0 and len(answer.read()) == (length if method == "GET" else 0)
    connection.close()
    server.end()
    with open(server.log_path, encoding="utf-8") as file:
        sent = dict(re.findall(r"event=request .*method=(\w+) path=/xrpc/_health status=200 size=(\d+)", file.read()))
    assert sent == {"GET": str(length), "HEAD": "0"}, sent


def admin_listener_tells_how_it_is(folder):
    server = Server(folder)
    assert server.ask("/livez", admin=True) == (200, "ok\n")
    assert server.ask("/startupz", admin=True) == (200, "ok\n")
    assert server.ask("/readyz", admin=True) == (200, "ready\n")
    status, body = server.ask("/readyz?verbose", admin=True)
    assert status == 200 and "[+] phase ok: serving\n" in body and "[+] sql ok\n" in body, body
    assert server.ask("/metrics")[0] == 404, "metrics are not for the public"
    assert server.ask("/livez")[0] == 404
    status, body = server.ask("/v1/status", admin=True)
    facts = json.loads(body)
    assert facts["ready"] and facts["database"] == "sqlite" and facts["phase"] == "serving", body
    said = run("status", "--data", server.data).stdout
    assert said.startswith("ready\n") and "sqlite" in said, said
    assert json.loads(run("status", "--data", server.data, "--json").stdout)["ready"]
    tree = run("actors", "--tree", "--data", server.data).stdout
    assert re.search(r"^server .*\n  auth .*\n    auth verifier ", tree), tree
    assert re.search(r"^  delivery .*\n    delivery ", tree, re.MULTILINE), tree
    assert len(json.loads(run("actors", "--json", "--data", server.data).stdout)["actors"]) == tree.count("\n") - 2, tree
    server.end()
    run("status", "--data", server.data, "--admin", server.admin, status=1)
    assert f"No server runs with the data in {server.data}." in run("status", "--data", server.data, status=1).stderr


def metrics_pass_promtool(folder):
    server = Server(folder)
    for _ in range(3):
        server.ask("/xrpc/_health")
    status, body = server.ask("/metrics", admin=True)
    server.end()
    assert status == 200
    names = re.findall(r"^# HELP (\S+)", body, re.MULTILINE)
    assert len(names) == len(set(names)) and len(names) >= 40, f"{len(names)} names"
    for name in ("troupe_build_info", "troupe_actor_live", "troupe_dead_letters_total", "process_open_fds",
                 "troupe_flag_ratio", "troupe_log_lines_total", "process_resident_memory_bytes"):
        assert name in names, name
    resident = int(re.search(r"^process_resident_memory_bytes (\d+)", body, re.MULTILINE).group(1))
    assert resident > 1 << 20, "the sandbox hides the process's own figures"
    if not shutil.which("promtool"):
        return "promtool is not installed"
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr
    return None


def changing_needs_the_token(folder):
    server = Server(folder)
    mode = os.stat(os.path.join(server.data, "admin.token")).st_mode & 0o777
    assert mode == 0o600, oct(mode)
    assert len(server.token()) == 43
    tries = [None, "", "x", server.token()[:-1], server.token() + "x", server.token().swapcase()]
    for token in tries:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        for path in ("/v1/drain", "/v1/flags/trace-export?percent=1%25", "/v1/flags/trace-export/rollback",
                     "/v1/log?level=debug"):
            status, body = server.ask(path, "POST", admin=True, headers=headers)
            assert status == 401 and "AuthRequired" in body, (token, path, status, body)
    status, body = server.ask("/v1/drain", "POST", admin=True, headers={"Authorization": server.token()})
    assert status == 401, body
    assert server.token() not in server.log()
    server.end()


def flags_change_at_run_time_and_stay(folder):
    server = Server(folder)
    where = ("--data", server.data)
    assert "trace-export" in run("flags", *where).stdout
    assert " 12.50%" in run("flags", "set", "trace-export", "12.5%", *where).stdout
    assert 'troupe_flag_ratio{flag="trace-export"} 0.1250' in server.ask("/metrics", admin=True)[1]
    run("flags", "set", "no-such-flag", "1%", *where, status=1)
    run("flags", "set", "trace-export", "lots", *where, status=2)
    server.end(signal.SIGKILL, status=-signal.SIGKILL)
    server = Server(folder)
    flags = json.loads(run("flags", "--json", *where).stdout)["flags"]
    assert [flag["percent"] for flag in flags if flag["name"] == "trace-export"] == ["12.50%"], flags
    assert "100%" in run("flags", "rollback", "trace-export", *where).stdout
    server.end()


def log_levels_change_at_run_time(folder):
    server = Server(folder, "--log-format", "json")
    status, body = server.ask("/v1/log?level=debug&module=sql", "POST", admin=True, token=server.token())
    assert status == 200 and json.loads(body) == {"level": "info", "modules": {"sql": "debug"}}, body
    status, body = server.ask("/v1/log?level=error", "POST", admin=True, token=server.token())
    assert json.loads(body)["level"] == "error", body
    before = len(server.log().splitlines())
    server.ask("/xrpc/_health")
    assert len(server.log().splitlines()) == before, "an info line at level error"
    for bad in ("level=loud", "level=", "module=sql", "level=default", "level=info&level=warn"):
        assert server.ask(f"/v1/log?{bad}", "POST", admin=True, token=server.token())[0] == 400, bad
    server.end()
    for line in server.log().splitlines():
        assert {"time", "level", "module", "event"} <= set(json.loads(line)), line


def replace(path, text):
    """The way editors do it: another file of the same name."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)


def hangup_reloads_what_is_safe(folder):
    path = os.path.join(folder, "troupe.conf")

    def write(text):
        replace(path, text)

    write("[log]\nlevel = error\n")
    server = Server(folder, "--config", path)
    assert server.log() == "", server.log()
    write("[log]\nlevel = debug\nlevels = http=error\n[http]\nin_flight_max = 5\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_log("the settings were reloaded")
    log = server.log()
    assert 'line="log.level is now debug"' in log, log
    assert 'line="http.in_flight_max needs a restart"' in log, log
    write("[log]\nlevel = loud\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_log("were not reloaded")
    assert "troupe.conf:2: log.level is 'loud'; it must be debug, info, warn or error." in server.log(), server.log()
    write("[log]\nlevel = error\nlevels = sql=warm\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_log("troupe.conf:3: log.levels is 'sql=warm'; it must be MODULE=LEVEL")
    assert "log.level is now error" not in server.log(), "half of a wrong file was applied"
    assert server.ask("/xrpc/_health")[0] == 200
    server.end()


def hangup_changes_rates_and_the_drain(folder):
    """Not only said: requests over the new rates are refused, those under them served, and the drain takes its new time."""
    path = os.path.join(folder, "troupe.conf")
    lxm = "blue.catbird.mls.getConvos"
    many = 30
    bearers = run("dev-token", "--key", os.path.join(folder, "ada.key"), "--lxm", lxm, "--count", str(4 * many)).stdout.split()
    reloads = 0

    def reload(server, **rates):
        nonlocal reloads
        replace(path, "[server]\ndrain_delay = 20s\n[auth]\n" + "".join(f"{k} = {v}\n" for k, v in rates.items()))
        server.process.send_signal(signal.SIGHUP)
        reloads += 1
        for _ in range(LIMIT_S * 100):
            if server.log().count("the settings were reloaded") == reloads:
                return
            threading.Event().wait(0.01)
        raise AssertionError(server.log())

    def answers(server):
        return [server.ask(f"/xrpc/{lxm}", token=bearers.pop()) for _ in range(many)]

    replace(path, "")
    server = Server(folder, "--dev", "--config", path)
    assert {status for status, _ in answers(server)} == {200}
    limited = 'troupe_auth_limited_total{by="%s"}'
    for by, other in (("did", "address"), ("address", "did")):
        reload(server, **{f"rate_per_{by}": 1, f"burst_per_{by}": 3, f"rate_per_{other}": 1000, f"burst_per_{other}": 1000})
        got = answers(server)
        refused = [body for status, body in got if status == 429]
        assert refused and "RateLimitExceeded" in refused[0] and got[0][0] == 200, (by, got)
        metrics = server.ask("/metrics", admin=True)[1]
        assert f"{limited % by} {len(refused)}\n" in metrics, (by, len(refused))
    reload(server, rate_per_did=1000, burst_per_did=1000, rate_per_address=1000, burst_per_address=1000)
    assert answers(server)[-1][0] == 200
    server.process.send_signal(signal.SIGTERM)
    server.wait_log("the server is draining")
    assert server.ask("/xrpc/_health")[0] == 200, "the delay was not in the settings it started with"
    server.end(signal.SIGTERM, status=1)  # the second signal: at once


def key_sets_of_files_are_read_again(folder):
    """In the sandbox too, and after the file was replaced by another of its name."""
    keys = os.path.join(folder, "keys.json")
    other = os.path.join(folder, "other.json")
    good = json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
                                 "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]})
    providers = f"auth.providers=a+https://a.example+{keys}+x, b+https://b.example+file:{other}+x"
    for path in (keys, other):
        replace(path, good)
    server = Server(folder, "--set", providers)
    for round_number, text in enumerate((good, "{}", good), 1):
        replace(other, text)
        server.process.send_signal(signal.SIGHUP)
        for _ in range(LIMIT_S * 100):
            if server.log().count("the settings were reloaded") == round_number:
                break
            threading.Event().wait(0.01)
        complaints = [line for line in server.log().splitlines() if "keeps its old keys" in line]
        assert len(complaints) == (round_number > 1), server.log()
        assert all(other in line for line in complaints), complaints
    server.end()


def drain_finishes_every_request(folder):
    """Clients go on asking while the server is told to end: every request on an open connection is answered, the last
    with `Connection: close`; only new connections are refused."""
    server = Server(folder)
    failures, answered, stop = [], [0], threading.Event()
    started = threading.Barrier(9)

    host, port = server.public.split(":")

    def is_refused():
        try:
            socket.create_connection((host, int(port)), timeout=LIMIT_S).close()
            return False
        except ConnectionError:
            return True

    def client():
        first = True
        while not stop.is_set():
            try:
                connection = socket.create_connection((host, int(port)), timeout=LIMIT_S)
            except ConnectionError:
                return  # it does not accept any more: not a failed request
            with connection:
                reader = connection.makefile("rb")
                for turn in range(20):
                    try:
                        connection.sendall(b"GET /xrpc/_health HTTP/1.1\r\nHost: x\r\n\r\n")
                        line = reader.readline()
                    except ConnectionError:
                        line = b""
                    if line == b"" and turn == 0 and is_refused():
                        return  # it waited to be accepted when the listener went: as good as refused
                    if not line.startswith(b"HTTP/1.1 200"):
                        failures.append(line)
                        return
                    length, close = 0, False
                    while (header := reader.readline()) not in (b"\r\n", b""):
                        if header.lower().startswith(b"content-length:"):
                            length = int(header.split(b":")[1])
                        close |= header.lower().strip() == b"connection: close"
                    if len(reader.read(length)) != length or length == 0:
                        failures.append(b"half an answer")
                        return
                    answered[0] += 1
                    if first:
                        first = False
                        started.wait(LIMIT_S)
                    if close:
                        break

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait(LIMIT_S)
    server.end()
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures, failures[:3]
    assert answered[0] >= 8
    assert 'event="the server has drained" cut=0' in server.log(), server.log()


def health_answers_under_overload(folder):
    """One request waits for its body and takes the only place: others are shed, but not who asks for health."""
    provider = "test+https://issuer.example+https://issuer.example/keys+client"
    server = Server(folder, "--set", "http.in_flight_max=1", "--set", f"auth.providers={provider}")
    host, port = server.public.split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as waiting:
        waiting.sendall(b"POST /v1/auth/logout HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
                        b"Expect: 100-continue\r\nContent-Type: application/json\r\n\r\n")
        assert waiting.recv(100).startswith(b"HTTP/1.1 100"), "it does not wait for the body"
        status, body = server.ask("/v1/auth/logout", method="POST")
        assert status == 503 and "Overloaded" in body, (status, body)
        assert server.ask("/xrpc/_health")[0] == 200
    server.end()


def drain_by_command_and_not_ready_meanwhile(folder):
    server = Server(folder, "--set", "server.drain_delay=20s")
    run("drain", "--data", server.data)
    server.wait_log("the server is draining")
    status, body = server.ask("/readyz", admin=True)
    assert status == 503 and "[-] phase failed: draining" in body, body
    assert server.ask("/livez", admin=True)[0] == 200
    assert server.ask("/xrpc/_health")[0] == 200, "it serves on until the delay is over"
    run("status", "--data", server.data, status=1)
    server.end(signal.SIGTERM, status=1)  # the second signal: at once
    assert "second signal" in server.log(), server.log()


def sandboxed(folder):
    server = Server(folder)
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as file:
        status = dict(line.split(":", 1) for line in file.read().splitlines())
    with open(f"/proc/{server.process.pid}/limits", encoding="utf-8") as file:
        limits = file.read()
    facts = json.loads(server.ask("/v1/status", admin=True)[1])
    server.end()
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2", status
    assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE), limits
    if "Landlock not" in facts["sandbox"]:
        return "this kernel has no Landlock"
    assert facts["sandbox"] == "Landlock on, seccomp on", facts
    server = Server(folder, "--set", "server.sandbox=off")
    assert json.loads(server.ask("/v1/status", admin=True)[1])["sandbox"] == "off"
    server.end()
    return None


def runs_as_another_user(folder):
    if os.geteuid() != 0:
        return "only root can become another user"
    os.chmod(folder, 0o755)
    server = Server(folder, "--set", "server.user=nobody")
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as file:
        uid = re.search(r"^Uid:\s+(\d+)", file.read(), re.MULTILINE).group(1)
    owner = os.stat(server.data).st_uid
    assert server.ask("/xrpc/_health")[0] == 200
    server.end()
    assert int(uid) == owner != 0, (uid, owner)
    return None


def wrong_starts_say_what_to_do(folder):
    data = os.path.join(folder, "data")
    token = os.path.join(folder, "own.token")
    with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    cases = [
        (["--set", "auth.service_did="], "auth.service_did is not set"),
        (["--listen", "nonsense"], "nonsense"),
        (["--listen", "8080"], "server.listen is '8080'; it must be an address like 127.0.0.1:8080"),
        (["--listen", "192.0.2.1:0"], "does not belong to this machine; choose another with --listen ADDR."),
        (["--admin", "192.0.2.1:0", "--set", f"admin.token_file={token}"],
         "does not belong to this machine; choose another with --admin ADDR."),
        (["--admin", f"unix:{folder}/nowhere/socket"], "nowhere: No such file or directory"),
        (["--admin", f"unix:{folder}/nowhere/socket", "--set", "server.sandbox=off"],
         "check that its directory exists; choose another with --admin ADDR."),
        (["--set", "auth.service_did=foo"], "auth.service_did is 'foo'; it must be a DID like did:web:chat.example.org"),
        (["--set", "auth.plc_directory=foo"], "auth.plc_directory is 'foo'; it must be a URL"),
        (["--set", "trace.url=foo"], "trace.url is 'foo'; it must be a URL"),
        (["--set", "server.trusted_proxies=foo"], "server.trusted_proxies is 'foo'; it must be networks"),
        (["--set", "auth.providers=a+https://a+/no/keys+x"], "auth.providers: /no/keys: "),
        (["--set", f"auth.providers=a+https://a+file:{token}+x"], f"auth.providers: {token}: The key set is not JSON at byte 0"),
        (["--set", "auth.providers=a+https://a+keys.json+x"], "it must be NAME+ISSUER+KEYS+CLIENT_ID"),
        (["--set", "server.tls_certificate=/x"], "server.tls_key is not set"),
        (["--set", "server.tls_key=/x"], "server.tls_certificate is not set"),
        (["--admin", "0.0.0.0:0"], "admin.token_file"),
        (["--set", "server.user=no-such-user"], "no-such-user"),
        (["--data", os.path.join(folder, "a/b/c")], "cannot be created"),
        (["--set", "log.levels=sql"], "log.levels is 'sql'; it must be MODULE=LEVEL"),
        (["--db", "mysql:x"], "sqlite:"),
        (["--set", "http.nope=1"], "http.nope is not a setting"),
        (["--config", os.path.join(folder, "missing.conf")], "missing.conf: The file does not exist."),
        (["--set", "admin.token_file=/no/token"], "admin.token_file: /no/token: No such file"),
        (["--set", f"server.tls_certificate={token}", "--set", "server.tls_key=/no/key"], "server.tls_key: /no/key: No such"),
    ]
    for arguments, expected in cases:
        done = run("serve", "--data", data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *SERVICE, *arguments,
                   status=1)
        assert expected in done.stderr, (arguments, done.stderr)
        assert done.stdout == "", done.stdout
        assert "the server has ended" not in done.stderr, f"it never began: {done.stderr}"
        made = os.listdir(data) if os.path.isdir(data) else None
        assert made in (None, ["admin.token"]), f"{arguments}: it has made {data} with {made}"
        shutil.rmtree(data, ignore_errors=True)
    run("serve", "--dance", status=2)
    run("serve", "--listen", status=2)


def another_kind_of_database_is_refused(folder):
    """A forgotten sql.url must not look like a server that lost everything."""
    server = Server(folder)
    server.end()
    start = ("serve", "--data", server.data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *SERVICE)
    kind = os.path.join(server.data, "database")

    def refused(before, now, *arguments):
        files = sorted(os.listdir(server.data))
        done = run(*start, *arguments, status=1)
        assert f"sql.url names a {now} database, but {server.data} was used with {before}" in done.stderr, done.stderr
        assert sorted(os.listdir(server.data)) == files, files

    nowhere = ("--db", "postgresql:///nothing?host=/nowhere")
    refused("sqlite", "postgresql", *nowhere)
    replace(kind, "")  # of one that met a full disk
    refused("sqlite", "postgresql", *nowhere)
    os.unlink(kind)  # of a server that did not write it yet
    refused("sqlite", "postgresql", *nowhere)
    replace(kind, "postgresql\n")
    refused("postgresql", "sqlite")
    os.unlink(kind)
    Server(folder).end()
    with open(kind, encoding="utf-8") as file:
        assert file.read() == "sqlite\n"


def a_second_start_leaves_the_first_server_alone(folder):
    """It is refused before it touches anything, also when it would listen elsewhere or use another database."""
    server = Server(folder)
    elsewhere = f"sqlite:{folder}/other.db"
    taken = (f"A server runs already with this data (pid {server.process.pid}); see `troupe status --data {server.data}`, "
             f"or stop it with `troupe drain --data {server.data}`.")

    def files():
        # What the server itself may write meanwhile is not of interest.
        return {name: os.stat(os.path.join(server.data, name)).st_mtime_ns for name in os.listdir(server.data)
                if not name.startswith("troupe.db")}
    before = files()
    for arguments in ((), ("--db", elsewhere), ("--listen", server.public, "--admin", server.admin)):
        done = run("serve", "--data", server.data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *SERVICE, *arguments,
                   status=1)
        assert taken in done.stderr, (arguments, done.stderr)
        assert files() == before, (arguments, before, files())
        with open(os.path.join(server.data, "admin.address"), encoding="utf-8") as file:
            assert file.read().strip() == server.admin, arguments
        assert run("status", "--data", server.data).stdout.startswith("ready\n"), arguments
    assert not os.path.exists(f"{folder}/other.db")
    # A server that was killed is in nobody's way.
    server.end(signal.SIGKILL, status=-signal.SIGKILL)
    server = Server(folder)
    assert run("status", "--data", server.data).stdout.startswith("ready\n")
    run("drain", "--data", server.data)
    server.end(None)
    assert not os.path.exists(os.path.join(server.data, "admin.address"))


def check_of_a_live_database_says_how(folder):
    server = Server(folder)
    assert server.ask("/xrpc/_health")[0] == 200
    for what in ("delivery", "packs"):
        done = run("check", what, "--data", server.data, status=2)
        hint = re.search(r"check a backup: troupe (backup copy.db .*); troupe (check .*)$", done.stderr, re.MULTILINE)
        assert hint and f"pid {server.process.pid}" in done.stderr, done.stderr
        for command in hint.groups():  # as it is printed
            done = subprocess.run([TROUPE, *command.split()], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S,
                                  check=False, env=environment())
            assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
        assert f"{what}: sound" in done.stdout, done.stdout
        os.unlink(os.path.join(folder, "copy.db"))
    server.end()


def busy_address_is_refused(folder):
    """Not shared: half of the requests would go to a server that its operator has forgotten."""
    server = Server(folder)
    other = ("serve", "--data", os.path.join(folder, "other"), *SERVICE)
    try:
        for listen, admin in ((server.public, "127.0.0.1:0"), ("127.0.0.1:0", server.admin)):
            done = run(*other, "--listen", listen, "--admin", admin, status=1)
            assert (listen if listen == server.public else admin) in done.stderr, done.stderr
            assert "choose other addresses with --listen ADDR --admin ADDR." in done.stderr, done.stderr
            assert "make run" not in done.stderr, done.stderr
            done = run(*other, "--listen", listen, "--admin", admin, "--dev", status=1)
            assert '`make run` takes them as ARGS="--listen ADDR --admin ADDR".' in done.stderr, done.stderr
            assert "the server has ended" not in done.stderr, done.stderr
            assert not os.path.exists(os.path.join(folder, "other")), "what was refused has made its directory"
    finally:
        server.end()


def token_of_others_opens_a_public_admin(folder):
    path = os.path.join(folder, "token")
    with open(path, "w", encoding="utf-8") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    os.chmod(path, 0o644)
    where = ("serve", "--data", os.path.join(folder, "data"), "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0",
             "--set", f"admin.token_file={path}", *SERVICE)
    assert "can be read by other users" in run(*where, status=1).stderr
    os.chmod(path, 0o600)
    server = Server(folder, "--admin", "0.0.0.0:0", "--set", f"admin.token_file={path}")
    server.admin = server.admin.replace("0.0.0.0", "127.0.0.1")
    assert server.ask("/livez", admin=True)[0] == 200
    for route in ("/metrics", "/v1/status", "/v1/flags", "/v1/log"):
        status, body = server.ask(route, admin=True)
        assert status == 401 and "the file of admin.token_file" in body, (route, body)
        assert server.ask(route, admin=True, token="0123456789abcdef0123456789abcdef")[0] == 200, route
    server.end()


def systemd_is_told(folder):
    path = os.path.join(folder, "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(LIMIT_S)
        server = Server(folder, NOTIFY_SOCKET=path, WATCHDOG_USEC="200000")
        seen = []

        def wait_for(text):
            while not any(line == text for message in seen for line in message.split("\n")):
                seen.append(listener.recv(4096).decode())
        wait_for("READY=1")
        wait_for("WATCHDOG=1")
        server.process.send_signal(signal.SIGHUP)
        wait_for("RELOADING=1")
        seen.clear()
        wait_for("READY=1")
        server.process.send_signal(signal.SIGTERM)
        wait_for("STOPPING=1")
        server.end(None)


def certificate_is_replaced_while_it_serves(folder):
    if not shutil.which("openssl"):
        return "openssl is not installed"
    tls = os.path.join(folder, "tls")
    os.mkdir(tls)

    def make(name):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", f"{tls}/new.key", "-out", f"{tls}/new.pem", "-days", "2", "-subj", f"/CN={name}"],
                       check=True, capture_output=True, timeout=LIMIT_S)
        os.rename(f"{tls}/new.key", f"{tls}/key.pem")
        os.rename(f"{tls}/new.pem", f"{tls}/cert.pem")

    def served():
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = server.public.split(":")
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as plain:
            with context.wrap_socket(plain) as secure:
                secure.sendall(b"GET /xrpc/_health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert secure.recv(100).startswith(b"HTTP/1.1 200")
                return secure.getpeercert(True)

    make("first")
    server = Server(folder, "--set", f"server.tls_certificate={tls}/cert.pem", "--set", f"server.tls_key={tls}/key.pem")
    assert "https://" in server.said, server.said
    before = served()
    make("second")
    server.process.send_signal(signal.SIGHUP)
    server.wait_log("the settings were reloaded")
    after = served()
    assert before != after
    with open(f"{tls}/cert.pem", "w", encoding="utf-8") as file:
        file.write("no certificate\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_log("keeps its old certificate")
    assert served() == after
    server.end()
    return None


def spans_reach_the_collector(folder):
    batches = queue.Queue()

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):  # pylint: disable=invalid-name  # its base class calls it
            body = self.rfile.read(int(self.headers["Content-Length"]))
            batches.put((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):  # pylint: disable=arguments-differ
            pass

    collector = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    server = Server(folder, "--set", f"trace.url=http://127.0.0.1:{collector.server_port}/v1/traces",
                    "--set", "trace.sample=100%", "--set", "trace.interval=50ms")
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    server.ask("/xrpc/_health", headers={"traceparent": f"00-{trace}-{parent}-01"})
    path, kind, body = batches.get(timeout=LIMIT_S)
    span = body["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert (path, kind) == ("/v1/traces", "application/json"), (path, kind)
    assert (span["traceId"], span["parentSpanId"], span["name"]) == (trace, parent, "GET /xrpc/_health"), span
    assert f"request={trace}" in server.log(), server.log()
    # The flag ends it at once; a trace that is not sampled is in no batch.
    run("flags", "set", "trace-export", "0%", "--data", server.data)
    server.ask("/xrpc/_health", headers={"traceparent": f"00-{'1' * 32}-{parent}-01"})
    run("flags", "rollback", "trace-export", "--data", server.data)
    server.ask("/xrpc/_health", headers={"traceparent": f"00-{'2' * 32}-{parent}-01"})
    body = batches.get(timeout=LIMIT_S)[2]
    assert [span["traceId"] for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]] == ["2" * 32], body
    server.end()
    collector.shutdown()
    collector.server_close()


class Postgres:
    """A PostgreSQL of our own on a unix socket in a folder of its own; as root it runs as `postgres` or `nobody`."""

    def __init__(self, folder):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
        self.bin = os.path.dirname(found[-1]) if found else None
        self.folder = os.path.join(folder, "pg")
        os.mkdir(self.folder, 0o700)
        self.user = None
        if os.geteuid() == 0:
            os.chmod(folder, 0o755)
            self.user = next((name for name in ("postgres", "nobody") if has_user(name)), None)
            shutil.chown(self.folder, self.user)

    def run(self, *command):
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=self.folder, user=self.user,
                       extra_groups=[] if self.user else None)

    def start(self, options="-c listen_addresses="):
        data = os.path.join(self.folder, "data")
        self.run(f"{self.bin}/initdb", "-D", data, "-U", "troupe", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self.run(f"{self.bin}/pg_ctl", "-D", data, "-w", "-l", os.path.join(self.folder, "log"), "-o",
                 f"{options} -k {self.folder}", "start")
        return f"postgresql:///postgres?host={self.folder}&user=troupe"

    def stop(self):
        self.run(f"{self.bin}/pg_ctl", "-D", os.path.join(self.folder, "data"), "-m", "immediate", "stop")


def has_user(name):
    try:
        pwd.getpwnam(name)
        return True
    except KeyError:
        return False


def serves_on_postgresql_inside_the_sandbox(folder):
    postgres = Postgres(folder)
    if not postgres.bin:
        return "PostgreSQL is not installed"
    url = postgres.start()
    try:
        server = Server(folder, "--dev", "--db", url)
        facts = json.loads(server.ask("/v1/status", admin=True)[1])
        assert facts["ready"] and facts["database"] == "postgresql", facts
        assert server.ask("/xrpc/_health")[0] == 200
        postgres.stop()
        # Its dependency is gone: alive, but not ready, and it says why.
        for _ in range(LIMIT_S * 20):
            status, body = server.ask("/readyz", admin=True)
            if status == 503:
                break
            threading.Event().wait(0.05)
        assert status == 503 and "[-] sql failed: " in body, body
        assert server.ask("/livez", admin=True)[0] == 200
        server.end()
        done = run("serve", "--data", server.data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--db", url, *SERVICE,
                   status=1)
        assert re.search(r"^troupe serve: The database of sql\.url \(--db\) cannot be opened: PostgreSQL: .*No such file",
                         done.stderr, re.MULTILINE), done.stderr
    finally:
        try:
            postgres.stop()
        except subprocess.CalledProcessError:
            pass  # it was stopped above
    return None


def libpq_reads_certificates_where_the_manual_says(folder):
    """Beside the configuration, not in a home directory. And as many connections as it says."""
    postgres = Postgres(folder)
    if not postgres.bin or not shutil.which("openssl"):
        return "PostgreSQL or openssl is not installed"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key, certificate = f"{postgres.folder}/tls.key", f"{postgres.folder}/tls.pem"
    postgres.run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                 "-out", certificate, "-days", "2", "-subj", "/CN=db", "-addext", "subjectAltName=IP:127.0.0.1")
    etc, home = os.path.join(folder, "etc"), os.path.join(folder, "home")
    for place in (etc, home):
        os.mkdir(place)
        shutil.copy(certificate, f"{place}/db-ca.pem")
    with open(f"{etc}/troupe.conf", "w", encoding="utf-8"):
        pass
    postgres.start(f"-c listen_addresses=127.0.0.1 -c port={port} -c ssl=on -c ssl_key_file={key} -c ssl_cert_file={certificate}")
    url = f"postgresql://troupe@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert="
    try:
        server = Server(folder, "--dev", "--config", f"{etc}/troupe.conf", TROUPE_SQL_URL=f"{url}{etc}/db-ca.pem")
        facts = json.loads(server.ask("/v1/status", admin=True)[1])
        assert facts["ready"] and facts["database"] == "postgresql", facts
        counted = subprocess.run(
            [f"{postgres.bin}/psql", "-XAt", "-h", postgres.folder, "-p", str(port), "-U", "troupe", "postgres", "-c",
             "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE ssl AND usename = 'troupe'"],
            capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
        assert counted == "8\n", f"{counted} connections"
        server.end()
        if "Landlock on" not in facts["sandbox"]:
            return "this kernel has no Landlock"
        done = run("serve", "--dev", "--data", server.data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config",
                   f"{etc}/troupe.conf", status=1, TROUPE_SQL_URL=f"{url}{home}/db-ca.pem")
        assert f"{home}/db-ca.pem" in done.stderr, done.stderr
    finally:
        postgres.stop()
    return None


def secrets_stay_out_of_the_log(folder):
    canary = "canary0123456789"
    server = Server(folder, "--log-level", "debug")
    server.ask(f"/xrpc/_health?token={canary}", headers={"Authorization": f"Bearer {canary}", "Cookie": canary})
    server.ask(f"/nowhere/{'x' * 20}", headers={"X-Secret": canary})
    body = server.ask("/metrics", admin=True)[1]
    server.end()
    assert canary not in server.log(), server.log()
    assert canary not in body


def main():
    if not os.access(TROUPE, os.X_OK):
        print(f"there is no {TROUPE}: run make release")
        return 77
    cases = [starts_and_says_what_to_copy, at_a_unix_socket_the_first_request_works_too,
             the_access_log_tells_what_was_sent, admin_listener_tells_how_it_is,
             metrics_pass_promtool, changing_needs_the_token, flags_change_at_run_time_and_stay, log_levels_change_at_run_time,
             hangup_reloads_what_is_safe, hangup_changes_rates_and_the_drain, key_sets_of_files_are_read_again,
             drain_finishes_every_request, drain_by_command_and_not_ready_meanwhile,
             health_answers_under_overload,
             sandboxed, runs_as_another_user, wrong_starts_say_what_to_do,
             another_kind_of_database_is_refused, a_second_start_leaves_the_first_server_alone, check_of_a_live_database_says_how, busy_address_is_refused,
             token_of_others_opens_a_public_admin, systemd_is_told,
             certificate_is_replaced_while_it_serves, spans_reach_the_collector,
             serves_on_postgresql_inside_the_sandbox, libpq_reads_certificates_where_the_manual_says,
             secrets_stay_out_of_the_log]
    wanted = sys.argv[1:]
    passed = failed = skipped = 0
    for case in cases:
        if wanted and case.__name__ not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                reason = case(folder)
            except Exception as error:  # pylint: disable=broad-exception-caught  # it is the verdict
                failed += 1
                print(f"not ok - {case.__name__}: {type(error).__name__}: {error}")
                continue
            finally:
                while Server.alive:  # a case that failed leaves its servers behind
                    process = Server.alive.pop()
                    process.kill()
                    process.wait()
        if reason:
            skipped += 1
            print(f"ok - {case.__name__} # SKIP {reason}")
        else:
            passed += 1
            print(f"ok - {case.__name__}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
