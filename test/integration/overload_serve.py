#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe serve` at ten times its capacity: it goes on working, says no to the rest at once with Retry-After, keeps its
memory, answers the operator, and is itself again afterwards. Five minutes of it with TROUPE_LONG. How well is measured by
tools/bench-chassis.py."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../lib"), os.path.join(HERE, "../../bench/overload")]
# pylint: disable=wrong-import-position
import overload
import serving

SECONDS = 300 if serving.LONG else 3


def sheds_and_recovers(folder):
    if serving.compile_drive(folder) is None:
        return "there is no C compiler"
    # Few places, so that it is overloaded also where the client is slow.
    stage = overload.Stage(folder, "--set", "http.in_flight_max=256", seconds=SECONDS)
    found = overload.measure(stage, SECONDS, with_prices=False)
    before, asked, after = found["before"], found["overload"], found["after"]
    assert before["status_2xx"] > 0, before
    assert asked["status_2xx"] > 0, f"nothing was done: {asked}"
    assert asked["shed"] > 0, f"nothing was shed: {asked}"
    assert asked["no_retry_after"] == 0, f"shed without Retry-After: {asked}"
    assert asked["status_4xx"] == 0 and asked["status_5xx"] == asked["shed"], f"refused otherwise: {asked}"
    assert asked["broken"] == asked["unanswered"] == 0, f"requests without an answer: {asked}"
    # 256 requests in work, 4000 connections at a few KB, what the database caches, the new members: not what was offered.
    assert asked["memory_kb"] < before["memory_kb"] + 100000 + asked["status_2xx"] * 0.3, (before["memory_kb"], asked)
    assert found["readyz"]["status_2xx"] > 0 and found["readyz"]["unanswered"] == 0, found["readyz"]
    # Of the public listener: who asks for the metrics may be counted itself, on the other.
    metrics = stage.server.ask("/metrics", admin=True)[2]
    assert 'troupe_http_in_flight{server="public"} 0\n' in metrics, "requests have places and do not exist"
    assert after["status_2xx"] > 0 and after["shed"] == 0, after
    assert stage.server.is_well(), "not well"
    assert stage.server.is_ready(), "not ready"
    stage.server.end()
    print("# " + ", ".join(f"{name} {value:.2f}" for name, value in overload.report(found, quiet=True).items()))
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases([sheds_and_recovers]))
