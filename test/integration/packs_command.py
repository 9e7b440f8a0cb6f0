#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe packs`: push, get, verify, list and rotate against a server; both ways go on after a kill, what was tampered
with is refused, and every error says what to do."""
import json
import os
import re
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


def a_file_goes_up_and_comes_down(folder, *arguments):
    server = start(folder, *arguments)
    first, second = packing.content(1, 300_000), packing.content(2, 5)
    done = push(server, write(folder, "one", first), "1.0.0", "--type", "application/zip")
    assert done.stdout.strip() == f"http://{server.public}/v1/packs/core/download", done.stdout
    assert "Registered core." in done.stderr and "Created" in done.stderr, done.stderr
    assert os.stat(os.path.join(folder, ".config/troupe/publisher.key")).st_mode & 0o777 == 0o600
    # Said with addresses, as from another machine; in the form of the issue.
    done = push(server, write(folder, "two", second), "2.0.0", "--server", f"http://{server.public}/", "--admin",
                f"http://{server.admin}/", "--key", os.path.join(folder, ".config/troupe/publisher.key"))
    assert "core 2.0.0 is now the active version; before it was 1.0.0." in done.stderr, done.stderr
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


def on_a_terminal(command, folder, **more):
    """Exit status of a command whose errors go to a terminal, and what that showed."""
    ours, theirs = os.openpty()
    with subprocess.Popen(command, cwd=folder, stderr=theirs, stdout=subprocess.DEVNULL,
                          env=serving.environment(HOME=folder), **more) as process:
        os.close(theirs)
        said = b""
        try:
            while data := os.read(ours, 4096):
                said += data
        except OSError:  # the other side is closed
            pass
        os.close(ours)
    return process.returncode, said


def bars(said, what):
    """The percentages that a bar had, as it grew."""
    found = re.findall(rb"\r" + what + rb" +\[(#*) *\] +(\d+)%  [\d.]+ of [\d.]+ MB  [\d.]+ MB/s", said)
    parts = [int(part) for _, part in found]
    assert parts == sorted(parts) and all(len(bar) == 24 * part // 100 for (bar, _), part in zip(found, parts)), found
    return parts


def a_terminal_sees_what_is_waited_for(folder):
    server = start(folder, "--set", "packs.rate_max=8MiB")
    path = write(folder, "one", packing.content(9, 12 << 20))
    status, said = on_a_terminal([serving.TROUPE, "packs", "push", path, "--name", "core", "--version", "1", "--data",
                                  server.data], folder)
    assert status == 0 and bars(said, b"hashing") and bars(said, b"uploading"), said
    status, said = on_a_terminal([serving.TROUPE, "packs", "get", "core", "--data", server.data], folder)
    assert status == 0, said
    assert b"waiting: the server verifies the file before it sends it" in said and said.endswith(b"\r\x1b[K"), said
    parts = bars(said, b"downloading")
    assert len(parts) > 2 and parts[0] < 100, said
    server.end()


def read_block():
    with open(os.path.join(serving.ROOT, "README.md"), encoding="utf-8") as file:
        block, = re.findall(r"^```sh\n([^`]*^troupe packs push [^`]*)^```$", file.read(), re.MULTILINE)
    lines = block.splitlines()
    assert len(lines) == 4 and lines[2].startswith("troupe packs push ") and lines[3].startswith("troupe packs get "), block
    assert all(re.search(r"# .*second run says: Going on at", line) for line in lines[2:]), f"the block does not show it:\n{block}"
    return lines


def arrived(place, ending=""):
    return sum(os.stat(os.path.join(place, name)).st_size for name in os.listdir(place) if name.endswith(ending))


def stopped(script, tree, folder, has_begun):
    """False: it was over before it could be stopped."""
    with subprocess.Popen(script, cwd=tree, env=serving.environment(HOME=folder), stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, start_new_session=True) as process:
        serving.wait_until(lambda: has_begun() or process.poll() is not None, "bytes arrive")
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 0 or re.search(rb"Stopped at [\d.]+ of 1\d\d\.\d MB; run the same command again to go on\.\n$",
                                                said), said
    return process.returncode != 0


def run_block(folder, lines):
    """False: a command was too quick to be stopped."""
    server = start(folder, "--set", "packs.rate_max=64MiB")
    tree = os.path.join(folder, "tree")
    os.makedirs(os.path.join(tree, "build"))
    os.symlink(serving.BUILD, os.path.join(tree, "build/release"))
    os.symlink(server.data, os.path.join(tree, "build/run"))
    subprocess.run(["sh", "-e", "-c", "\n".join(lines[:2])], cwd=tree, check=True, timeout=60)
    before = read(os.path.join(tree, "build/core.bin"))
    for line, has_begun in ((lines[2], lambda: arrived(os.path.join(server.data, "packs/incoming")) > 0),
                            (lines[3], lambda: arrived(os.path.join(tree, "build"), ".part") > 0)):
        script = ["bash", "-c", lines[0] + "\n" + line]
        if not stopped(script, tree, folder, has_begun):
            server.end()
            return False
        status, said = on_a_terminal(script, tree)
        assert status == 0 and re.search(rb"Going on at [\d.]+ of 100\.0 MB", said), said
        assert re.search(rb"\[#* *\] +\d+%", said), said
    assert read(os.path.join(tree, "build/core.copy")) == before
    server.end()
    return True


def the_block_of_the_readme_goes_on_after_an_interrupt(folder):
    """Its lines, word for word, in a tree like ours; push and get are each stopped by Ctrl-C and run again, and say what
    the block says. A push on the same machine takes a tenth of a second: if it cannot be stopped in time, once more."""
    lines = read_block()
    for attempt in range(20):
        place = os.path.join(folder, str(attempt))
        os.mkdir(place)
        if run_block(place, lines):
            return
    raise AssertionError("of twenty pushes none could be stopped")


def a_push_that_is_stopped_leaves_no_hole(folder):
    """A client that is gone takes back its last question: what comes behind that in the same request must go too."""
    server = start(folder)
    path = write(folder, "big", packing.content(3, 100 << 20))
    count = 0
    for version in range(40):
        command = [serving.TROUPE, "packs", "push", path, "--name", "core", "--version", str(version), "--data", server.data]
        count += stopped(command, folder, folder, lambda: arrived(os.path.join(server.data, "packs/incoming")) > 0)
        done = subprocess.run(command, cwd=folder, env=serving.environment(HOME=folder), capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0 or "Choose another one" in done.stderr, done.stderr
        if count == 8:
            break
    assert count > 0, "none could be stopped"
    server.end()


def push_goes_on_after_a_kill(folder, *arguments):
    server = start(folder, *arguments)
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
    server = start(folder, *arguments)
    done = push(server, path, "1")
    assert "Going on at" in done.stderr, done.stderr
    status, _, body = packing.download(server, "/v1/packs/core/download")
    assert status == 200 and body == data
    assert not packing.incoming(server)
    server.end()
    assert not packing.check_packs(folder, *arguments)


def push_goes_on_while_the_server_restarts(folder, *arguments):
    server = start(folder, *arguments)
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
        server = serving.Server(folder, "--dev", *serving.FAST, *arguments, listen=public, admin=admin)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, output + errors
        assert "The server is unreachable; retrying for 30 s." in errors, errors
    status, _, body = packing.download(server, "/v1/packs/core/download")
    assert status == 200 and body == data
    server.end()


def get_goes_on_after_a_kill(folder, *arguments):
    server = start(folder, "--set", "packs.rate_max=4MiB", *arguments)
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
    server = start(folder, *arguments)
    done = get(server)
    assert "Going on at" in done.stderr, done.stderr
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
    assert "its bytes are missing" in packing.run(server, "packs", "verify", mirror, check=1).stdout
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
    assert "no key is pinned" in packing.run(server, "packs", "verify", mirror, home=stranger, check=1).stdout
    key = document["keys"][0]["key"]
    packing.run(server, "packs", "verify", mirror, "--trust", key, home=stranger)
    # Another key is trusted: who signed, who is trusted and where that is written, in whole keys.
    other = "z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    pins = write(stranger, "pins", f"core {other}\n".encode())
    done = packing.run(server, "packs", "verify", mirror, "--pins", pins, home=stranger, check=1)
    assert f"core-1.manifest.json: it is signed by {key}, but ~/pins pins {other} for it." in done.stdout, done.stdout
    assert "--trust KEY, or --pins FILE" in done.stdout and "0 good, 1 bad" in done.stdout, done.stdout
    done = packing.run(server, "packs", "verify", mirror, "--trust", other, home=stranger, check=1)
    assert f"it is signed by {key}, but --trust names {other}" in done.stdout, done.stdout
    write(stranger, "pins", f"core {other} -{key}\n".encode())
    done = packing.run(server, "packs", "verify", mirror, "--pins", pins, home=stranger, check=1)
    assert f"it is signed by {key}, a retired key" in done.stdout, done.stdout
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


def a_pin_that_cannot_be_read_is_an_error(folder):
    """It used to count as none, so that `get` trusted whatever key the server sent."""
    server = start(folder)
    push(server, write(folder, "one", b"one"), "1")
    get(server)
    pins = os.path.join(folder, ".config/troupe/pack-keys")
    name, key = read(pins).decode().split()
    other = "z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
    for text in (f"# of Ada\n\n{name}\t{key}\n", f"  {name}   {key} \r\n", f"other {other}\n{name} {key}"):
        write(folder, ".config/troupe/pack-keys", text.encode())
        get(server)
    for text, line in ((f"{name} {other}x\n", 1), (f"# x\n\n{name}:{key}\n", 3), (f"{name}\n", 1), (f"{name} -{key}\n", 1),
                       (f"{name} {key}\nother key\n", 2), (f"{name} {key}, {other}\n", 1), (f"Core {key}\n", 1)):
        write(folder, ".config/troupe/pack-keys", text.encode())
        for more in ((), ("--trust", key)):
            done = get(server, *more, check=1)
            assert f"pack-keys:{line} is not \"NAME KEY...\"" in done.stderr, (text, done.stderr)
        assert read(pins) == text.encode()
    # A pin of another key counts however it is written.
    write(folder, ".config/troupe/pack-keys", f"{name}\t\t{other}\n".encode())
    assert "pins" in get(server, check=1).stderr
    server.end()


def keys_are_pinned_and_rotate(folder, *arguments):
    server = start(folder, *arguments)
    old, new, other = (os.path.join(folder, name) for name in ("old.key", "new.key", "other.key"))
    one = write(folder, "one", b"one")
    push(server, one, "1", "--key", old)
    get(server)
    assert "KeyUnknown" not in push(server, write(folder, "two", b"two"), "2", "--key", other, check=1).stderr
    done = push(server, os.path.join(folder, "two"), "2", "--key", other, check=1)
    assert "Another key signs this pack." in done.stderr and "rotate" in done.stderr, done.stderr
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
    assert pins[0] == "core" and pins[1] != key and pins[2:] == ["-" + key], pins
    # The last key stays.
    packing.run(server, "packs", "rotate", "core", "--key", new, "--retire", pins[1], "--data", server.data, check=1)
    # Another server, other people, the same name: not what was pinned.
    elsewhere = os.path.join(folder, "elsewhere")
    os.mkdir(elsewhere)
    evil = serving.Server(elsewhere, "--dev", *serving.FAST)
    push(evil, one, "9", "--key", other)
    done = packing.run(server, "packs", "get", "core", "--server", f"http://{evil.public}", check=1)
    strange = json.loads(evil.ask("/v1/packs/core/manifest")[2])["keys"][0]["key"]
    assert f"core is signed by {strange}, but ~/.config/troupe/pack-keys pins {pins[1]} for it." in done.stderr, done.stderr
    assert "--trust KEY" in done.stderr, done.stderr
    assert not os.path.exists(os.path.join(folder, "core-9"))
    done = packing.run(server, "packs", "get", "core", "--server", f"http://{evil.public}", "--trust", pins[1], check=1)
    assert f"core is signed by {strange}, but --trust names {pins[1]}" in done.stderr, done.stderr
    done = packing.run(server, "packs", "get", "core", "--server", f"http://{evil.public}", "--pins",
                       os.path.join(folder, "fresh"))
    assert f"This is the first get of core: ~/fresh now pins its key, {strange}." in done.stderr, done.stderr
    done = packing.run(server, "packs", "get", "core", "--data", server.data, "--pins", os.path.join(folder, "fresh"),
                       check=1)
    assert f"~/fresh pins {strange} for it" in done.stderr, done.stderr
    # Whom its publisher has told is trusted from now on.
    packing.run(server, "packs", "get", "core", "--data", server.data, "--pins", os.path.join(folder, "fresh"), "--trust",
                pins[1])
    packing.run(server, "packs", "get", "core", "--data", server.data, "--pins", os.path.join(folder, "fresh"))
    evil.end()
    server.end()


def a_push_that_is_refused_leaves_nothing(folder):
    server = start(folder)
    config = os.path.join(folder, ".config/troupe")
    one = write(folder, "one", b"one")

    def is_untouched():
        return packing.Admin(server).ask("GET", "packs/core")[0] == 404 and not os.path.exists(
            os.path.join(config, "publisher.key")) and not packing.incoming(server) and not packing.objects(server)
    # An encoding of nothing; a key file that is none; a token that is another server's.
    done = push(server, one, "1", "--encoding", "gzip", check=1)
    assert "Push the version first, without --encoding" in done.stderr and is_untouched(), done.stderr
    for key in (one, "/nonexistent/k"):
        push(server, one, "1", "--key", key, check=1)
        assert is_untouched()
    other = os.path.join(folder, "other.token")
    with open(os.open(other, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    done = push(server, one, "1", "--set", f"admin.token_file={other}", check=1)
    assert "The admin token is missing or wrong; name it with --data DIR of the server, or --set" in done.stderr, \
        done.stderr
    assert is_untouched()
    # A pack that others sign: no key is made, nothing is uploaded.
    theirs = os.path.join(folder, "theirs.key")
    push(server, one, "1", "--key", theirs)
    two, before = write(folder, "two", b"two"), packing.objects(server)
    done = push(server, two, "2", check=1)
    assert "Another key signs this pack." in done.stderr and "rotate core" in done.stderr, done.stderr
    done = push(server, two, "1", check=1)
    assert "Choose another one" in done.stderr, done.stderr
    done = push(server, two, "2", "--unsigned", check=1)
    assert "leave --unsigned out" in done.stderr, done.stderr
    done = push(server, two, "2", "--encoding", "zstd", check=1)
    assert "There is no version 2 of core" in done.stderr, done.stderr
    assert not os.path.exists(os.path.join(config, "publisher.key")) and packing.objects(server) == before
    assert [version["version"] for version in packing.Admin(server).good("GET", "packs/core")["versions"]] == ["1"]
    # Who has nothing to sign needs no key.
    push(server, one, "1")
    push(server, one, "1", "--no-publish", name="later")
    assert not os.path.exists(os.path.join(config, "publisher.key"))
    # What is neither a key nor a file does not become one.
    for option in ("--retire", "--add"):
        done = packing.run(server, "packs", "rotate", "core", "--key", theirs, option, "z6Mkwrong", "--data", server.data,
                           check=1)
        assert "'z6Mkwrong' is neither a key nor a file" in done.stderr, done.stderr
    assert not os.path.exists(os.path.join(folder, "z6Mkwrong"))
    server.end()


def errors_say_what_to_do(folder):
    server = start(folder)
    one = write(folder, "one", b"one")
    push(server, one, "1", "--unsigned")
    two = write(folder, "two", b"two")
    key = os.path.join(folder, "a.key")
    push(server, one, "1", "--key", key, name="signed")
    for arguments, status, words in (
            (("push", two, "--name", "core", "--version", "1"), 1, "Choose another one"),
            (("push", os.path.join(folder, "none"), "--name", "core", "--version", "2"), 1, "No such file"),
            (("push", folder, "--name", "core", "--version", "2"), 1, "is not a regular file"),
            (("push", two, "--version", "2"), 2, "Name the pack with --name NAME"),
            (("push", two, "--name", "Core X", "--version", "2"), 2, "does not begin with a dot, unlike 'Core X'"),
            (("push", two, "--name", "../core", "--version", "2"), 2, "--name"),
            (("push", two, "--name", "core"), 2, "--version"),
            (("push", two, "--name", "core", "--version", "a b"), 2, "--version"),
            (("push", two, "--name", "core", "--version", "2", "--type", "zip"), 2, "--type"),
            (("push", two, "--name", "core", "--version", "2", "--key", "/nonexistent/k"), 1, "Name another file with --key"),
            (("push", two, "--name", "core", "--version", "1", "--encoding", "gzip"), 1, "422"),
            (("push", two, "--name", "core", "--version", "1", "--encoding", "br"), 2, "zstd or gzip"),
            (("get", "none"), 1, f"There is no pack none on http://{server.public}"),
            (("get", "core", "--version", "7"), 1, f"There is no version 7 of core on http://{server.public}"),
            (("get", "core", "--trust", "z6Mk"), 2, "--trust takes"),
            (("get", "core", "--set", "packs.nope=1"), 2, "packs.nope is not a setting"),
            (("get", "core"), 1, "--unsigned"),
            (("get", "../core"), 2, "A pack name has"),
            (("get",), 2, "Name the pack"),
            (("get", "core", "--unsigned", "--out", "/nonexistent/x"), 1, "/nonexistent/x"),
            (("get", "core", "--server", "http://127.0.0.1:1"), 1, "No server answers"),
            (("list", "--server", "http://127.0.0.1:1"), 1, "No server answers"),
            (("verify", os.path.join(folder, "none")), 1, "No such file"),
            (("verify", folder), 1, "There is no manifest"),
            (("verify", folder, "--trust", "x"), 2, "--trust"),
            (("rotate", "core"), 2, "--add"),
            (("rotate", "core", "--key", key, "--retire", "z6Mkwrong"), 1, "'z6Mkwrong' is neither a key nor a file"),
            (("rotate", "none", "--key", key, "--add", key), 1, f"There is no pack none on http://{server.admin}"),
            (("dance",), 2, "dance"),
            ((), 2, "push, get"),
            (("get", "core", "--out"), 2, "There is no value after"),
    ):
        done = packing.run(server, "packs", *arguments, *(() if arguments[-1:] == ("--out",) else ("--data", server.data)),
                           check=status)
        assert words in done.stderr, f"{arguments}: {done.stderr}"
    get(server, "--unsigned")
    assert read(os.path.join(folder, "core-1")) == b"one"
    server.end()
    done = push(server, two, "2", check=1)
    assert "No server runs with the data" in done.stderr, done.stderr


if __name__ == "__main__":
    # In the background of a shell it is ignored, and would be by what is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(serving.run_cases([
        *serving.on_both(a_file_goes_up_and_comes_down, push_goes_on_after_a_kill,
                         push_goes_on_while_the_server_restarts, get_goes_on_after_a_kill, keys_are_pinned_and_rotate),
        the_block_of_the_readme_goes_on_after_an_interrupt, a_push_that_is_stopped_leaves_no_hole,
        a_terminal_sees_what_is_waited_for, a_part_of_something_else_does_no_harm, what_was_tampered_with_is_refused,
        a_pin_that_cannot_be_read_is_an_error, a_push_that_is_refused_leaves_nothing, errors_say_what_to_do]))
