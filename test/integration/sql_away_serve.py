#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe serve` on a PostgreSQL that hangs, is down, or belongs to another server: it ends when it is told to, it answers
soon, and it does not start."""
import glob
import os
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import adding
import serving


def processes_of(postgres):
    """The one that listens and all of its children: sessions, writers of pages and log."""
    with open(os.path.join(postgres.data, "postmaster.pid"), encoding="ascii") as file:
        first = int(file.readline())
    found = [first]
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        if int(fields[1]) == first:
            found.append(int(path.split("/")[2]))
    return found


def freeze(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def made(folder):
    postgres = serving.Postgres(folder)
    if postgres.bin:
        postgres.make()
    return postgres


def is_session(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().startswith("postgres: troupe ")
    except OSError:
        return False


def term_ends_a_server_whose_postgresql_hangs(folder):
    return end_while_it_hangs(folder, lambda pids: freeze(pids, signal.SIGSTOP))


def term_ends_a_server_that_cannot_connect(folder):
    def hang_up(pids):
        """The sessions end, and nobody answers a new one: the kernel takes it and that is all."""
        freeze(pids[:1], signal.SIGSTOP)
        freeze([pid for pid in pids if is_session(pid)], signal.SIGTERM)

    return end_while_it_hangs(folder, hang_up)


def end_while_it_hangs(folder, hang):
    postgres = made(folder)
    if not postgres.bin:
        return "PostgreSQL is not installed"
    # Without a bound of its own it would wait for minutes.
    arguments = ["--dev", *serving.FAST, "--db", postgres.url, "--set", "http.request_timeout=10m", "--set",
                 "sql.away_timeout=10m"]
    server = serving.Server(folder, *arguments, "--set", "server.drain_timeout=2s")
    ledger, convos = adding.Ledger(folder), [f"convo-{number}" for number in range(3)]
    for convo in convos:
        serving.create_convo(server, folder, convo)
    stop = threading.Event()
    threads = ledger.load(server, convos, stop)
    serving.wait_until(lambda: len(ledger.acked) >= 40, "40 adds")
    pids = processes_of(postgres)
    try:
        hang(pids)
        acked = len(ledger.acked)
        serving.wait_until(lambda: server.metric("troupe_sql_waiting") + len(ledger.open) >= 3, "requests that wait")
        stop.set()
        began_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=serving.LIMIT_S)
        took_s = time.monotonic() - began_s
        for thread in threads:  # every one has its answer, if only that the connection is gone
            thread.join(serving.LIMIT_S)
            assert not thread.is_alive()
    finally:
        freeze(pids, signal.SIGCONT)
    serving.Server.alive.remove(server.process)
    assert server.process.returncode == 0, f"exit status {server.process.returncode}: {server.log()[-2000:]}"
    assert "no longer waits for the database" in server.log(), server.log()[-2000:]
    server = serving.Server(folder, *arguments)
    ledger.settle(server)
    ledger.check(server, convos)
    server.end()
    print(f"# it ended {took_s:.1f} s after SIGTERM; {acked} adds acknowledged, lost 0")
    return None


def without_postgresql_requests_are_refused_soon(folder):
    postgres = made(folder)
    if not postgres.bin:
        return "PostgreSQL is not installed"
    server = serving.Server(folder, "--dev", *serving.FAST, "--db", postgres.url, "--set", "http.request_timeout=10m",
                            "--set", "sql.away_timeout=1s")
    serving.create_convo(server, folder, "convo")
    postgres.stop("fast")
    # A client waits for LIMIT_S; the request alone would wait for ten minutes.
    for number in range(5):
        began_s = time.monotonic()
        status, answer = serving.call(server, folder, "addMembers", {
            "convoId": "convo", "didList": [f"did:example:{number}"], "idempotencyKey": f"add-{number}"})
        assert status == 503, (status, answer)
        print(f"# refused after {time.monotonic() - began_s:.2f} s: {answer}")
    status, headers, _ = server.ask(
        f"/xrpc/{serving.PREFIX}getOptInStatus?dids=did:example:1",
        headers={"Authorization": "Bearer " + serving.tokens(folder, "getOptInStatus")[0]})
    assert status == 503 and headers.get("retry-after"), (status, headers)
    assert server.metric("troupe_sql_units_total") >= 1
    assert not server.is_ready() and server.is_well()
    postgres.start()
    serving.wait_until(server.is_ready, "ready again")
    serving.wait_until(lambda: serving.call(server, folder, "addMembers", {
        "convoId": "convo", "didList": ["did:example:9"], "idempotencyKey": "add-9"})[0] == 200, "an add again")
    server.end()
    return None


def second_server_is_refused(folder):
    postgres = made(folder)
    if not postgres.bin:
        return "PostgreSQL is not installed"
    server = serving.Server(folder, "--dev", *serving.FAST, "--db", postgres.url)
    other = [serving.TROUPE, "serve", "--dev", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data",
             os.path.join(folder, "other"), "--db", postgres.url]
    refused = subprocess.run(other, capture_output=True, text=True, timeout=serving.LIMIT_S, check=False,
                             env=serving.environment())
    assert refused.returncode == 1, (refused.returncode, refused.stderr)
    assert "another server has this PostgreSQL database" in refused.stderr, refused.stderr
    checked = subprocess.run([serving.TROUPE, "check", "delivery", "--db", postgres.url], capture_output=True, text=True,
                             timeout=serving.LIMIT_S, check=False, env=serving.environment())
    assert checked.returncode == 0 and "sound" in checked.stdout, (checked.returncode, checked.stdout, checked.stderr)
    serving.create_convo(server, folder, "convo")
    # Killed, and another one at once: the sessions of the first are about to end.
    server.kill()
    second = os.path.join(folder, "second")
    os.mkdir(second)
    server = serving.Server(second, "--dev", *serving.FAST, "--db", postgres.url)
    assert serving.call(server, folder, "getConvo", query="?convoId=convo")[0] == 200
    server.end()
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases([term_ends_a_server_whose_postgresql_hangs, term_ends_a_server_that_cannot_connect,
                                without_postgresql_requests_are_refused_soon, second_server_is_refused]))
