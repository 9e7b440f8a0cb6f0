#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench-chassis.py [PART...]: what the server promises about speed, measured on the shipped program.

Parts: http (hello-JSON beside nginx), sse (idle streams), json, auth (token cache), sql (durable units beside the disk's
syncs), overload (ten times capacity). Without any: all of them. -n ROUNDS and -s SECONDS make it longer or shorter; -q is the
quick one. Each figure is a median of short interleaved rounds, as a ratio where there is something to compare with, and
has the load average of its time beside it: on a machine that does other things too, run it again when that was high.
Prints one table; exit status 1 if a target was missed, 2 if a part could not run."""
import argparse
import dataclasses
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "test/lib"), os.path.join(ROOT, "bench/overload")]
# pylint: disable=wrong-import-position
import overload
import serving

IDLE_STREAMS = 10000
SLOW_SYNC_US = 950  # with what a sleep and the call itself take it is about 1 ms
NGINX = """
worker_processes {workers}; daemon off; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000000; default_type application/json; server_tokens off;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{ listen 127.0.0.1:{port}; location / {{ return 200 '{{"version":"0.1.0"}}'; }} }}
}}
"""


@dataclasses.dataclass
class Figure:
    """One row. `kept` is None for what is told without a promise."""
    name: str
    target: str
    value: str
    kept: bool = None
    load: float = dataclasses.field(default_factory=lambda: os.getloadavg()[0])


class Missing(Exception):
    """A part cannot run here; its text says why."""


def at_least(name, value, target, unit=""):
    return Figure(name, f"≥ {target:g}{unit}", f"{value:.2f}{unit}", value >= target)


def at_most(name, value, target, unit=""):
    return Figure(name, f"≤ {target:g}{unit}", f"{value:.2f}{unit}", value <= target)


def told(name, text):
    return Figure(name, "", text)


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Missing(f"{program} is not installed: tools/install-deps.sh bench")


# ---- hello-JSON beside nginx ---------------------------------------------------------------------------------------


def cpu_ticks(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total


def cpu_ns(pids):
    """As the scheduler counts it, thread by thread: ticks of 10 ms are too coarse for short rounds."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
            except (OSError, IndexError):
                pass
    return total or cpu_ticks(pids) * 10 ** 9 // os.sysconf("SC_CLK_TCK")


def unit_us(number, unit):
    return float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


def wrk(url, seconds, pids):
    """CPU in microseconds per request and the 99th percentile of one round."""
    before = cpu_ns(pids)
    said = subprocess.run(["wrk", "-t2", "-c64", f"-d{seconds}s", "--latency", url], capture_output=True, text=True,
                          check=True).stdout
    used = cpu_ns(pids) - before
    count = int(re.search(r"(\d+) requests in", said).group(1))
    assert "Non-2xx" not in said, said
    return used / count / 1e3, unit_us(*re.search(r"99% +([\d.]+)(us|ms|s)\b", said).groups()), count / seconds


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_nginx(folder, workers):
    port = free_port()
    with open(os.path.join(folder, "nginx.conf"), "w", encoding="ascii") as file:
        file.write(NGINX.format(folder=folder, port=port, workers=workers))
    # pylint: disable=consider-using-with  # the caller ends it
    process = subprocess.Popen(["nginx", "-c", os.path.join(folder, "nginx.conf"), "-p", folder],
                               stderr=subprocess.DEVNULL)

    def answers():
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        except OSError:
            return False

    serving.wait_until(answers, "nginx answers")
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout.split()
    return process, [int(child) for child in children], f"http://127.0.0.1:{port}/"


def part_http(options):
    need("nginx", "wrk", "pgrep")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        cases = {}
        servers = []
        nginx = []
        try:
            for workers in (1, 2):
                os.mkdir(os.path.join(folder, f"n{workers}"))
                process, pids, url = start_nginx(os.path.join(folder, f"n{workers}"), workers)
                nginx.append(process)
                cases["nginx", workers] = (url, pids)
                os.mkdir(os.path.join(folder, f"t{workers}"))
                server = serving.Server(os.path.join(folder, f"t{workers}"), "--dev", "--set", f"server.workers={workers}",
                                        "--set", "http.access_log=off")
                servers.append(server)
                cases["troupe", workers] = (f"http://{server.public}/xrpc/_health", [server.process.pid])
            os.mkdir(os.path.join(folder, "logged"))
            logged = serving.Server(os.path.join(folder, "logged"), "--dev", "--set", "server.workers=1")
            servers.append(logged)
            cases["troupe, access log", 1] = (f"http://{logged.public}/xrpc/_health", [logged.process.pid])
            rounds = {name: [] for name in cases}
            for number in range(-1, options.rounds):
                for name, (url, pids) in cases.items():
                    found = wrk(url, options.seconds, pids)
                    if number >= 0:
                        rounds[name].append(found)
        finally:
            for server in servers:
                server.kill()
            for process in nginx:
                process.terminate()
                process.wait()
    return http_figures(rounds)


def http_figures(rounds):
    figures = []

    def median(name, workers, field):
        return statistics.median(found[field] for found in rounds[name, workers])

    for workers in (1, 2):
        pairs = list(zip(rounds["troupe", workers], rounds["nginx", workers]))
        words = f"{workers} worker{'s' if workers > 1 else ''}"
        figures.append(at_most(f"hello-JSON, CPU per request ÷ nginx's, {words}",
                               statistics.median(ours[0] / theirs[0] for ours, theirs in pairs), 1.0))
        figures.append(at_most(f"hello-JSON, p99 ÷ nginx's, {words}",
                               statistics.median(ours[1] / theirs[1] for ours, theirs in pairs), 1.0))
        figures.append(told(f"hello-JSON, {words}: CPU, p99, requests a second",
                            f"{median('troupe', workers, 0):.1f} µs, {median('troupe', workers, 1) / 1e3:.2f} ms, "
                            f"{median('troupe', workers, 2):.0f} (nginx {median('nginx', workers, 0):.1f} µs, "
                            f"{median('nginx', workers, 1) / 1e3:.2f} ms, {median('nginx', workers, 2):.0f})"))
    figures.append(told("hello-JSON with the access log on, CPU", f"{median('troupe, access log', 1, 0):.1f} µs"))
    return figures


# ---- idle streams --------------------------------------------------------------------------------------------------


def open_streams(server, folder, count):
    """Every stream is a member's subscription with a ticket; a ticket is good for half a minute."""
    streams = []
    while len(streams) < count:
        status, answer = serving.call(server, folder, "getSubscriptionTicket", {"convoId": "convo"})
        assert status == 200, answer
        request = (f"GET {answer['endpoint']}?convoId=convo&ticket={answer['ticket']} HTTP/1.1\r\nHost: x\r\n"
                   "Accept: text/event-stream\r\n\r\n").encode()
        batch = []
        for _ in range(min(500, count - len(streams))):
            client = socket.create_connection(server.address, timeout=30)
            client.sendall(request)
            batch.append(client)
        for client in batch:
            said = client.recv(4096)
            assert said.startswith(b"HTTP/1.1 200"), said[:200]
        streams += batch
    return streams


def part_sse(options):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(IDLE_STREAMS if not options.quick else 2000, hard - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with tempfile.TemporaryDirectory() as folder:
            server = serving.Server(folder, "--dev", *serving.FAST, "--set", "http.connections_max=20000", "--set",
                                    "http.access_log=off")
            try:
                serving.create_convo(server, folder, "convo")
                for client in open_streams(server, folder, 50):
                    client.close()
                before = server.memory_kb()
                streams = open_streams(server, folder, count)
                at_once = (server.memory_kb() - before) / count
                time.sleep(17)  # every stream has had a heartbeat
                beaten = (server.memory_kb() - before) / count
                used = server.cpu_s()
                time.sleep(15)
                used = server.cpu_s() - used
                held = int(server.metric("troupe_http_connections"))
                for client in streams:
                    client.close()
            finally:
                server.kill()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [at_most(f"{count} idle SSE connections, memory each, KB", max(at_once, beaten), 8),
            told("the same: just opened, after a heartbeat; connections counted",
                 f"{at_once:.2f} KB, {beaten:.2f} KB; {held}"),
            told(f"heartbeats of {count} streams, CPU", f"{used / 15 * 100:.1f} % of a core")]


# ---- json and auth: programs of their own --------------------------------------------------------------------------


def run_program(*command, **more):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
                          env={**os.environ, "TROUPE_BUILD": serving.BUILD, **more})
    if done.returncode == 2:
        raise Missing((done.stdout + done.stderr).strip())
    if done.returncode not in (0, 1):
        raise Missing(f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout


def part_json(_options):
    found = dict(re.findall(r"^(\S+) ([\d.]+)", run_program("bench/json/build.sh"), re.MULTILINE))
    figures = []
    for body, name in (("small", "1 KB request"), ("large", "1 MB /sync")):
        figures.append(at_least(f"JSON, {name}, of simdjson's speed", float(found[f"{body}.of_simdjson"]), 0.65))
        figures.append(at_least(f"JSON, {name}, of cJSON's speed", float(found[f"{body}.of_cjson"]), 5))
        figures.append(told(f"JSON, {name}, with duplicate keys refused, of simdjson's speed",
                            found[f"{body}.unique_of_simdjson"]))
    return figures


def part_auth(options):
    ratios, lines = [], {}
    for _ in range(3 if options.quick else 5):
        said = run_program("bench/auth/run", "cache")
        lines = dict(re.findall(r"^(\w+) +([\d.]+)", said, re.MULTILINE))
        name = next((name for name in lines if "ratio" in name or "times" in name), None)
        if name is None:
            raise Missing(f"bench/auth/run does not say a ratio:\n{said}")
        ratios.append(float(lines[name]))
    return [at_least("ES256K check ÷ hit in the token cache", statistics.median(ratios), 40),
            told("the same, all runs", ", ".join(f"{ratio:.1f}" for ratio in ratios))]


# ---- sql -----------------------------------------------------------------------------------------------------------


def sql_numbers(said):
    """A part of what bench/sql prints: ratios of its rounds, the probe, a lone unit."""
    rounds = re.findall(r"^ +\d+ +(\d+) +(\d+) +([\d.]+) ", said, re.MULTILINE)
    lone = re.search(r"lone_unit_us_p50 (\d+)\s+lone_unit_us_p99 (\d+)", said).groups()
    syncs = int(re.search(r"syncs_after (\d+)", said).group(1))
    assert re.search(r"^stored (\d+) of \1 acknowledged", said, re.MULTILINE), said
    return {"ratio": statistics.median(float(found[2]) for found in rounds),
            "syncs": statistics.median(int(found[0]) for found in rounds),
            "units": statistics.median(int(found[1]) for found in rounds),
            "lone_us": int(lone[0]), "lone_p99_us": int(lone[1]), "sync_us": 1e6 / syncs}


def sql_figures(name, fast, slow, slow_target):
    def details(found):
        return (f"{found['syncs']:.0f}, {found['units']:.0f}, {found['lone_us']} µs, {found['lone_p99_us']} µs, "
                f"{found['sync_us']:.0f} µs")

    words = "the same: syncs/s, units/s, lone unit p50 and p99, a sync just before"
    return [at_least(f"durable units ÷ syncs, {name}, this disk", fast["ratio"], 1.5),
            told(words, details(fast)),
            at_least(f"durable units ÷ syncs, {name}, 1 ms disk", slow["ratio"], slow_target),
            told(words, details(slow)),
            # A timer that waits for company would be seen here: the time of a sync is known.
            at_most(f"a lone unit's p50 ÷ a sync, {name}, 1 ms disk", slow["lone_us"] / slow["sync_us"], 2)]


def slow_place():
    """Where the slow disk is played: in memory if it can be, so that only the shim decides how long a sync takes."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True, text=True, check=False).stdout.strip()
    return "/dev/shm" if kind == "tmpfs" else None


def run_sql(options, on_postgres, is_slow):
    """One database on one disk: bench/sql in a folder of its own."""
    words = ["-s", str(options.seconds), "-r", str(min(options.rounds, 7))]
    with tempfile.TemporaryDirectory(dir=slow_place() if is_slow else None) as folder:
        os.chmod(folder, 0o755)
        slow = {"SLOW": "1", "SLOW_SYNC_US": str(SLOW_SYNC_US)} if is_slow else {}
        if not on_postgres:
            return sql_numbers(run_program("bench/sql/run", f"sqlite:{folder}/bench.db", *words, **slow))
        more = {}
        if is_slow:
            shim = os.path.join(folder, "slow_sync.so")
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-DSLOW_SYNC_MODULE", "-o", shim,
                            os.path.join(ROOT, "test/lib/slow_sync.c"), "-ldl"], check=True)
            more = {"LD_PRELOAD": shim, **slow}
        postgres = serving.Postgres(folder, **more)
        if not postgres.bin:
            raise Missing("PostgreSQL is not installed")
        postgres.make()
        try:
            return sql_numbers(run_program("bench/sql/run", postgres.url, "-p", folder, *words, **slow))
        finally:
            postgres.stop()


def part_sql(options):
    figures = []
    for name, on_postgres, target in (("SQLite", False, 20), ("PostgreSQL", True, 15)):
        figures += sql_figures(name, run_sql(options, on_postgres, False), run_sql(options, on_postgres, True), target)
    return figures


# ---- overload ------------------------------------------------------------------------------------------------------


def overload_once(options, name, **how):
    with tempfile.TemporaryDirectory() as folder:
        rounds = 3 if options.quick else 5
        stage = overload.Stage(folder, seconds=4, rounds=rounds, **how)
        try:
            found = overload.measure(stage, 4, rounds=rounds)
        finally:
            stage.server.kill()
    lines = overload.report(found, quiet=True)
    return [at_least(f"10 ×, {name}: goodput ÷ capacity before and after it", lines["goodput_of_capacity"], 0.8),
            told("the same, least and most of the rounds", f"{lines['goodput_least']:.2f}, {lines['goodput_most']:.2f}"),
            told("the same, per second of the server's CPU", f"{lines['goodput_of_capacity_by_cpu']:.2f}"),
            told("capacity of one core; CPU of an add; both, beside refusals",
                 f"{lines['capacity_per_s']:.0f}/s; {lines['capacity_cpu_us']:.0f} µs; "
                 f"{1e6 * found['overload']['server_cpu_s'] / max(found['overload']['status_2xx'], 1):.0f} µs"),
            told("CPU of a refusal; of the same bytes from a server that does nothing",
                 f"{lines['refusal_us']:.1f} µs; {lines['bare_us']:.1f} µs"),
            told("goodput ÷ capacity if refusals cost no more than that", f"{lines['goodput_bound']:.2f}"),
            told("of a core: at capacity; overloaded", f"{lines['capacity_core']:.2f}; {lines['overload_core']:.2f}"),
            told("an add, p50 and p99", f"{lines['good_us_p50'] / 1e3:.0f} ms, {lines['good_us_p99'] / 1e3:.0f} ms"),
            told("offered, of capacity; not even sent", f"{lines['offered_of_capacity']:.1f}; {lines['unsent']:.0f}"),
            at_most(f"10 ×, {name}: refusals, p99 since sent, ms", lines["shed_since_sent_us_p99"] / 1e3, 50),
            told("the same, p50; since due, p50 and p99", f"{lines['shed_since_sent_us_p50'] / 1e3:.1f} ms; "
                 f"{lines['shed_us_p50'] / 1e3:.1f} ms, {lines['shed_us_p99'] / 1e3:.1f} ms"),
            at_most(f"10 ×, {name}: refused without Retry-After", lines["shed_without_retry_after"], 0),
            at_most(f"10 ×, {name}: /readyz on the admin listener, p99, ms", lines["readyz_us_p99"] / 1e3, 20),
            told("the same, p50; p99 before the overload", f"{lines['readyz_us_p50'] / 1e3:.1f} ms; "
                 f"{lines['readyz_before_us_p99'] / 1e3:.1f} ms"),
            at_most(f"10 ×, {name}: memory in the first round, MB", lines["memory_kb_overload"] / 1e3, 256),
            told("the same at capacity before it; at the end", f"{lines['memory_kb_before'] / 1e3:.0f}; "
                 f"{lines['memory_kb_end'] / 1e3:.0f}"),
            at_most("ready again after, s", lines["ready_again_s"], 10),
            told("capacity at the end ÷ at the beginning; per CPU", f"{lines['capacity_after_of_before']:.2f}; "
                 f"{lines['capacity_after_of_before_by_cpu']:.2f}")]


def part_overload(options):
    """A group of twenty through a unix socket, as behind a proxy; and the cheapest change over TCP, where ten times
    capacity is the most refusals there can be."""
    return (overload_once(options, "20 members, unix socket", members=20, is_unix=True) +
            overload_once(options, "20 members, TCP", members=20) + overload_once(options, "1 member, TCP"))


PARTS = {"http": part_http, "sse": part_sse, "json": part_json, "auth": part_auth, "sql": part_sql,
         "overload": part_overload}


def print_table(figures):
    rows = [("", "figure", "target", "measured", "load")]
    for figure in figures:
        mark = {True: "kept", False: "MISSED", None: ""}[figure.kept]
        rows.append((mark, figure.name, figure.target, figure.value, f"{figure.load:.1f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []])
    parser.add_argument("-n", "--rounds", type=int, default=11)
    parser.add_argument("-s", "--seconds", type=int, default=2)
    parser.add_argument("-q", "--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = min(options.rounds, 5), 1
    if not os.access(serving.TROUPE, os.X_OK):
        print(f"there is no {serving.TROUPE}: run make release")
        return 2
    figures, missing = [], []
    for name in options.parts or PARTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            figures += PARTS[name](options)
        except Missing as why:
            missing.append(f"{name}: {why}")
    print_table(figures)
    for text in missing:
        print(f"not measured: {text}")
    if any(figure.kept is False for figure in figures):
        return 1
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
