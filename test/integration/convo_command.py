#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe convo show`: a running server tells what it knows of a conversation."""
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import serving  # noqa: E402  # pylint: disable=wrong-import-position


def convo(*arguments):
    return subprocess.run([serving.TROUPE, "convo", *arguments], capture_output=True, text=True, timeout=serving.LIMIT_S,
                          check=False, env=serving.environment())


def a_conversation_is_shown_as_its_actor_knows_it(folder):
    server = serving.Server(folder, "--dev")
    name = 'odd "id" a/b?c=d&é'  # whatever a client may choose
    serving.create_convo(server, folder, name)
    status, answer = serving.call(server, folder, "addMembers", {"convoId": name, "didList": ["did:plc:somebody"]})
    assert status == 200, answer
    done = convo("show", name, "--data", server.data)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(name + "\n"), done.stdout
    for line in ("kind         numbered", "epoch        1, confirmed 1, planned 1", "seq          2, planned 2", "members      2",
                 "requests     0 in flight, 0 waiting", "streams      0"):
        assert line in done.stdout.split("\n"), (line, done.stdout)
    done = convo("show", name, "--json", "--admin", server.admin)
    shown = json.loads(done.stdout)
    assert done.returncode == 0 and (shown["id"], shown["epoch"], shown["members"]) == (name, 1, 2), shown
    assert "did:" not in done.stdout, "members are counted, not named"
    server.end()


def an_id_may_look_like_an_option(folder):
    server = serving.Server(folder, "--dev")
    for name in ("-", "--", "--json", "-h"):
        serving.create_convo(server, folder, name)
        done = convo("show", "--data", server.data, "--", name)
        assert done.returncode == 0 and done.stdout.startswith(name + "\n"), (name, done)
    done = convo("--data", server.data, "--", "show", "-", "-")
    assert done.returncode == 2 and "There is one argument too many" in done.stderr, done
    done = convo("show", "-", "--data", server.data)
    assert done.returncode == 2 and "There is no option" in done.stderr, done
    server.end()


def a_plain_id_may_stand_in_the_path(folder):
    server = serving.Server(folder, "--dev")
    serving.create_convo(server, folder, "plain")
    status, _, body = server.ask("/v1/convos/plain", admin=True)
    assert status == 200 and json.loads(body)["kind"] == "undecided", (status, body)
    status, _, body = server.ask("/v1/convos", admin=True)
    assert status == 400, (status, body)
    status, _, body = server.ask("/v1/convos/plain")  # the public listener has no such route
    assert status == 404 and json.loads(body)["error"] == "NotFound", (status, body)
    server.end()


def what_is_not_there_and_what_is_wrong_is_said(folder):
    server = serving.Server(folder, "--dev")
    done = convo("show", "nowhere", "--data", server.data)
    assert (done.returncode, done.stdout) == (1, "") and "no conversation with this id" in done.stderr, done
    for arguments in ([], ["show"], ["hide", "x"], ["show", ""], ["show", "x" * 129], ["show", "x", "y"]):
        done = convo(*arguments, "--data", server.data)
        assert done.returncode == 2 and "troupe convo" in done.stderr, (arguments, done)
    server.end()
    done = convo("show", "x", "--admin", server.admin)
    assert done.returncode == 1 and "No server answers" in done.stderr, done


if __name__ == "__main__":
    sys.exit(serving.run_cases([a_conversation_is_shown_as_its_actor_knows_it, an_id_may_look_like_an_option,
                                a_plain_id_may_stand_in_the_path, what_is_not_there_and_what_is_wrong_is_said]))
