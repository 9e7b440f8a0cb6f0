#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe packs`: push, get, verify, list and rotate against a server; both ways go on after a kill, what was tampered
with is refused, and every error says what to do."""
import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import packing
import serving

BIG = 48 << 20


def start(folder, *arguments):
    return serving.Server(folder, "--dev", *serving.FAST, *arguments)


def write(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


def push(server, path, version, *more, name="core", **options):
    return packing.run(server, "packs", "push", path, "--name", name, "--version", version, "--data", server.data, *more,
                       **options)


def get(server, *more, name="core", **options):
    return packing.run(server, "packs", "get", name, "--data", server.data, *more, **options)


def a_file_goes_up_and_comes_down(folder):
    server = start(folder)
    first, second = packing.content(1, 300_000), packing.content(2, 5)
    done = push(server, write(folder, "one", first), "1.0.0", "--type", "application/zip")
    assert done.stdout.strip() == f"http://{server.public}/v1/packs/core/download", done.stdout
    assert "registered core" in done.stderr and "made" in done.stderr, done.stderr
    assert os.stat(os.path.join(folder, ".config/troupe/publisher.key")).st_mode & 0o777 == 0o600
    # Said with addresses, as from another machine; in the form of the issue.
    push(server, write(folder, "two", second), "2.0.0", "--server", f"http://{server.public}/", "--admin",
         f"http://{server.admin}/", "--key", os.path.join(folder, ".config/troupe/publisher.key"))
    assert get(server).stdout.strip() == "core-2.0.0"
    assert read(os.path.join(folder, "core-2.0.0")) == second
    done = packing.run(server, "packs", "get", "core", "--server", f"http://{server.public}", "--version", "1.0.0", "--out",
                       "elsewhere")
    assert read(os.path.join(folder, "elsewhere")) == first
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]
    listed = packing.run(server, "packs", "list", "--server", f"http://{server.public}").stdout
    assert "core" in listed and "2.0.0" in listed and "1.0.0" not in listed, listed
    packing.run(server, "packs", "verify", folder)
    # Again: nothing to do, and nothing is done.
    assert get(server).stdout.strip() == "core-2.0.0"
    push(server, os.path.join(folder, "two"), "2.0.0")
    # An encoding of a version that is there.
    packed = os.path.join(folder, "one.gz")
    with open(packed, "wb") as file:
        subprocess.run(["gzip", "-c", os.path.join(folder, "one")], stdout=file, check=True)
    push(server, packed, "1.0.0", "--encoding", "gzip")
    status, headers, body = packing.download(server, "/v1/packs/core/versions/1.0.0/download",
                                             {"Accept-Encoding": "gzip"})
    assert status == 200 and headers.get("content-encoding") == "gzip" and body == read(packed), headers
    server.end()


def push_goes_on_after_a_kill(folder):
    server = start(folder)
    data = packing.content(3, BIG)
    path = write(folder, "big", data)
    with subprocess.Popen([serving.TROUPE, "packs", "push", path, "--name", "core", "--version", "1", "--data",
                           server.data], env=serving.environment(HOME=folder), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        def has_begun():
            return [name for name in packing.incoming(server)
                    if os.stat(os.path.join(server.data, "packs/incoming", name)).st_size > 0]
        serving.wait_until(has_begun, "bytes arrive")
        process.send_signal(signal.SIGKILL)
    if not packing.incoming(server):
        raise AssertionError("it was over before it was killed: make the file larger")
    # And the server too.
    server.kill()
    server = start(folder)
    done = push(server, path, "1")
    assert "going on at" in done.stderr, done.stderr
    status, _, body = packing.download(server, "/v1/packs/core/download")
    assert status == 200 and body == data
    assert not packing.incoming(server)
    server.end()
    assert not packing.check_packs(folder)


def push_goes_on_while_the_server_restarts(folder):
    server = start(folder)
    data = packing.content(4, BIG)
    path = write(folder, "big", data)
    public, admin = server.public, server.admin
    with subprocess.Popen([serving.TROUPE, "packs", "push", path, "--name", "core", "--version", "1", "--data",
                           server.data, "--admin", admin, "--server", f"http://{public}"],
                          env=serving.environment(HOME=folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        def has_begun():
            return [name for name in packing.incoming(server)
                    if os.stat(os.path.join(server.data, "packs/incoming", name)).st_size > 0]
        serving.wait_until(has_begun, "bytes arrive")
        server.kill()
        server = serving.Server(folder, "--dev", *serving.FAST, listen=public, admin=admin)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, output + errors
    status, _, body = packing.download(server, "/v1/packs/core/download")
    assert status == 200 and body == data
    server.end()


def get_goes_on_after_a_kill(folder):
    server = start(folder, "--set", "packs.rate_max=4MiB")
    data = packing.content(5, 16 << 20)
    push(server, write(folder, "big", data), "1")
    part = os.path.join(folder, "core-1.part")
    with subprocess.Popen([serving.TROUPE, "packs", "get", "core", "--data", server.data], cwd=folder,
                          env=serving.environment(HOME=folder), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        serving.wait_until(lambda: os.path.exists(part) and os.stat(part).st_size > 0, "bytes arrive")
        process.send_signal(signal.SIGKILL)
    before = os.stat(part).st_size
    assert before < len(data)
    server.end()
    server = start(folder)
    done = get(server)
    assert "going on at" in done.stderr, done.stderr
    assert read(os.path.join(folder, "core-1")) == data and not os.path.exists(part)
    assert " status=206 " in server.log(), "it began again"
    server.end()


def a_part_of_something_else_does_no_harm(folder):
    server = start(folder)
    first, second = packing.content(6, 200_000), packing.content(7, 200_000)
    push(server, write(folder, "one", first), "1")
    push(server, write(folder, "two", second), "2")
    write(folder, "out.part", first[:100_000])
    get(server, "--out", "out")
    assert read(os.path.join(folder, "out")) == second
    write(folder, "long.part", first + second)
    get(server, "--out", "long")
    assert read(os.path.join(folder, "long")) == second
    server.end()


def what_was_tampered_with_is_refused(folder):
    server = start(folder)
    data = packing.content(8, 100_000)
    push(server, write(folder, "one", data), "1")
    mirror = os.path.join(folder, "mirror")
    os.mkdir(mirror)
    get(server, "--out", mirror)
    path = os.path.join(mirror, "core-1")
    assert "1 good, 0 bad" in packing.run(server, "packs", "verify", mirror).stdout
    for bad in (data[:-1], data + b"x", b"x" + data[1:], b""):
        write(mirror, "core-1", bad)
        assert "0 good, 1 bad" in packing.run(server, "packs", "verify", mirror, check=1).stdout
    os.unlink(path)
    assert "not there" in packing.run(server, "packs", "verify", mirror, check=1).stdout
    write(mirror, "core-1", data)
    proof = path + ".manifest.json"
    document = json.loads(read(proof))
    for change in (lambda d: d.update(signature="A" * 86), lambda d: d.update(manifest=d["manifest"].replace("1", "2", 1)),
                   lambda d: d.update(manifest=None), lambda d: d.update(keys=[])):
        bent = json.loads(json.dumps(document))
        change(bent)
        write(mirror, "core-1.manifest.json", json.dumps(bent).encode())
        packing.run(server, "packs", "verify", mirror, check=1)
    write(mirror, "core-1.manifest.json", json.dumps(document).encode())
    packing.run(server, "packs", "verify", mirror)
    # Nobody is trusted without a reason.
    stranger = os.path.join(folder, "stranger")
    os.mkdir(stranger)
    assert "no key is trusted" in packing.run(server, "packs", "verify", mirror, home=stranger, check=1).stdout
    key = document["keys"][0]["key"]
    packing.run(server, "packs", "verify", mirror, "--trust", key, home=stranger)
    # A mirror as a copy of /v1/packs has it.
    copy = os.path.join(folder, "copy/core/versions/1")
    os.makedirs(copy)
    write(copy, "download", data)
    write(os.path.join(folder, "copy/core"), "manifest", read(proof))
    assert "1 good" in packing.run(server, "packs", "verify", os.path.join(folder, "copy")).stdout
    # The object on the server's disk is exchanged: the client is not served it, or does not take it.
    name, = packing.objects(server)
    target = os.path.join(server.data, "packs/objects", name)
    os.chmod(target, 0o640)
    with open(target, "r+b") as file:
        file.write(b"tampered")
    os.unlink(path)
    done = get(server, "--out", os.path.join(folder, "other"), check=1)
    assert not os.path.exists(os.path.join(folder, "other")), done.stderr
    server.end()


def keys_are_pinned_and_rotate(folder):
    server = start(folder)
    old, new, other = (os.path.join(folder, name) for name in ("old.key", "new.key", "other.key"))
    one = write(folder, "one", b"one")
    push(server, one, "1", "--key", old)
    get(server)
    assert "KeyUnknown" not in push(server, write(folder, "two", b"two"), "2", "--key", other, check=1).stderr
    done = push(server, os.path.join(folder, "two"), "2", "--key", other, check=1)
    assert "signed by another key" in done.stderr and "rotate" in done.stderr, done.stderr
    done = packing.run(server, "packs", "rotate", "core", "--key", other, "--add", other, "--data", server.data, check=1)
    packing.run(server, "packs", "rotate", "core", "--key", old, "--add", new, "--data", server.data)
    push(server, os.path.join(folder, "two"), "2", "--key", new)
    # A client that knows the old key is led to the new one.
    get(server)
    key = json.loads(read(os.path.join(folder, "core-2.manifest.json")))["keys"][0]["key"]
    packing.run(server, "packs", "rotate", "core", "--key", new, "--retire", key, "--data", server.data)
    done = push(server, write(folder, "three", b"three"), "3", "--key", old, check=1)
    push(server, os.path.join(folder, "three"), "3", "--key", new)
    get(server)
    assert read(os.path.join(folder, "core-3")) == b"three"
    pins = read(os.path.join(folder, ".config/troupe/pack-keys")).decode().split()
    assert pins[0] == "core" and len(pins) == 2 and pins[1] != key, pins
    # The last key stays.
    packing.run(server, "packs", "rotate", "core", "--key", new, "--retire", pins[1], "--data", server.data, check=1)
    # Another server, other people, the same name: not what was pinned.
    elsewhere = os.path.join(folder, "elsewhere")
    os.mkdir(elsewhere)
    evil = serving.Server(elsewhere, "--dev", *serving.FAST)
    push(evil, one, "9", "--key", other)
    done = packing.run(server, "packs", "get", "core", "--server", f"http://{evil.public}", check=1)
    assert "cannot be trusted" in done.stderr and "--trust" in done.stderr, done.stderr
    assert not os.path.exists(os.path.join(folder, "core-9"))
    evil.end()
    server.end()


def errors_say_what_to_do(folder):
    server = start(folder)
    one = write(folder, "one", b"one")
    push(server, one, "1", "--unsigned")
    two = write(folder, "two", b"two")
    for arguments, status, words in (
            (("push", two, "--name", "core", "--version", "1"), 1, "Choose another one"),
            (("push", os.path.join(folder, "none"), "--name", "core", "--version", "2"), 1, "No such file"),
            (("push", folder, "--name", "core", "--version", "2"), 1, "is not a file"),
            (("push", two, "--version", "2"), 2, "--name"),
            (("push", two, "--name", "Core", "--version", "2"), 2, "--name"),
            (("push", two, "--name", "../core", "--version", "2"), 2, "--name"),
            (("push", two, "--name", "core"), 2, "--version"),
            (("push", two, "--name", "core", "--version", "a b"), 2, "--version"),
            (("push", two, "--name", "core", "--version", "2", "--type", "zip"), 2, "--type"),
            (("push", two, "--name", "core", "--version", "2", "--key", "/nonexistent/k"), 1, "/nonexistent/k"),
            (("push", two, "--name", "core", "--version", "1", "--encoding", "gzip"), 1, "422"),
            (("get", "none"), 1, "no such pack"),
            (("get", "core", "--version", "7"), 1, "no such version"),
            (("get", "core"), 1, "--unsigned"),
            (("get", "../core"), 2, "which pack"),
            (("get",), 2, "which pack"),
            (("get", "core", "--unsigned", "--out", "/nonexistent/x"), 1, "/nonexistent/x"),
            (("get", "core", "--server", "http://127.0.0.1:1"), 1, "no server answers"),
            (("list", "--server", "http://127.0.0.1:1"), 1, "no server answers"),
            (("verify", os.path.join(folder, "none")), 1, "No such file"),
            (("verify", folder), 1, "no manifest"),
            (("verify", folder, "--trust", "x"), 2, "--trust"),
            (("rotate", "core"), 2, "--add"),
            (("dance",), 2, "dance"),
            ((), 2, "push, get"),
            (("get", "core", "--out"), 2, "no value after"),
    ):
        done = packing.run(server, "packs", *arguments, *(() if arguments[-1:] == ("--out",) else ("--data", server.data)),
                           check=status)
        assert words in done.stderr, f"{arguments}: {done.stderr}"
    get(server, "--unsigned")
    assert read(os.path.join(folder, "core-1")) == b"one"
    server.end()
    done = push(server, two, "2", check=1)
    assert "no server runs with the data" in done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(serving.run_cases([
        a_file_goes_up_and_comes_down, push_goes_on_after_a_kill, push_goes_on_while_the_server_restarts,
        get_goes_on_after_a_kill, a_part_of_something_else_does_no_harm, what_was_tampered_with_is_refused,
        keys_are_pinned_and_rotate, errors_say_what_to_do]))
