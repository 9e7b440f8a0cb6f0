#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`troupe backup`, `restore`, `verify` and `migrate`, on both databases: a backup is made while the server runs and
works, and is all there after a restore elsewhere; every migration of the server goes down and up again; nothing of it is
done to a database that a server has. The scripts of docs/operations.md do what they are there for."""
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import adding
import packing
import serving


def troupe(*arguments, status=0, says=""):
    """A command's output, after its exit status and what it must say are checked."""
    done = subprocess.run([serving.TROUPE, *arguments], capture_output=True, text=True, timeout=120, check=False,
                          env=serving.environment())
    said = done.stdout + done.stderr
    assert done.returncode == status, f"troupe {' '.join(arguments)}: exit status {done.returncode}, not {status}: {said}"
    assert says in said, f"troupe {' '.join(arguments)} does not say {says!r}: {said}"
    return said


class Place:
    """A data directory, and what the commands must be told to find its database."""

    def __init__(self, folder, name, url=None):
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        os.chmod(self.folder, 0o755)
        self.data = os.path.join(self.folder, "data")
        self.options = ["--data", self.data] + (["--db", url] if url else [])
        self.more = ["--db", url] if url else []
        shutil.copytree(os.path.join(folder, "keys"), self.folder, dirs_exist_ok=True)

    def serve(self):
        return serving.Server(self.folder, "--dev", *serving.FAST, *self.more)


def keys(folder):
    """One identity for all servers of a case."""
    os.mkdir(os.path.join(folder, "keys"))
    serving.tokens(os.path.join(folder, "keys"), "getConvo")


def epoch_of(server, convo):
    status, answer = serving.call(server, server.folder, "getConvo", query=f"?convoId={convo}")
    return answer["epoch"] if status == 200 else None


def back_up_and_restore(folder, old, new):
    """Acknowledged before the backup: in it. Under way meanwhile: there or not, but consistent."""
    file = os.path.join(folder, "copy")
    server = old.serve()
    ledger = adding.Ledger(old.folder)
    serving.create_convo(server, old.folder, "before")
    for number in range(5):
        assert ledger.send(server, None, "before", f"did:example:first-{number}")
    serving.create_convo(server, old.folder, "meanwhile")
    stop = threading.Event()
    threads = ledger.load(server, ["meanwhile"], stop)
    serving.wait_until(lambda: len(ledger.acked) > 40, "adds under way")
    told_before = len([convo for convo, _ in ledger.acked if convo == "meanwhile"])
    troupe("backup", file, *old.options, says="bytes")
    stop.set()
    for thread in threads:
        thread.join(serving.LIMIT_S)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600, "others can read the backup"
    assert not os.path.exists(file + ".part")
    troupe("backup", file, *old.options, status=1, says="exists already")
    told_after = len([convo for convo, _ in ledger.acked if convo == "meanwhile"]) + len(ledger.open)
    troupe("verify", file, says="sound")
    # Nothing is done to what a server has.
    troupe("restore", file, *old.options, status=1, says=f"or stop it with `troupe drain --data {old.data}`.")
    if not old.more:  # a SQLite file has one owner
        troupe("migrate", "status", *old.options, status=1, says=f"stop it with `troupe drain --data {old.data}`;")
    troupe("migrate", "down", "--to", "0", *old.options, status=1, says="A server runs already with this data")
    troupe("migrate", "up", *old.options, status=1, says="A server runs already with this data")
    assert epoch_of(server, "before") == 5
    server.end()

    troupe("restore", file, *new.options, says="restored from")
    troupe("verify", *new.options, says="sound")
    troupe("check", "delivery", *new.options, says="sound")
    server = new.serve()
    assert epoch_of(server, "before") == 5
    assert told_before <= epoch_of(server, "meanwhile") <= told_after, (told_before, told_after)
    assert adding.Ledger(new.folder).send(server, None, "before", "did:example:later")  # it goes on
    server.end()
    return file


def damage(file):
    """A copy that is cut, and one with other bytes in its middle."""
    with open(file, "rb") as original:
        content = original.read()
    for name, bad in (("cut", content[:len(content) // 2]),
                      ("changed", content[:8192] + bytes(b ^ 0x5a for b in content[8192:16384]) + content[16384:]),
                      ("empty", b"")):
        path = f"{file}.{name}"
        with open(path, "wb") as copy:
            copy.write(bad)
        yield path


def refuse_damage(file, place):
    for path in damage(file):
        troupe("verify", path, status=1)
        troupe("restore", path, *place.options, status=1)
    troupe("verify", file + ".none", status=1, says="cannot be read")
    troupe("check", "delivery", *place.options, says="sound")
    server = place.serve()
    assert epoch_of(server, "before") == 6, "a damaged backup has changed something"
    server.end()


def walk_migrations(place, tables):
    said = troupe("migrate", "status", *place.options)
    newest = int(re.search(r"schema version (\d+) of \1\n", said).group(1))
    assert newest >= 8, said
    assert len(re.findall(r"^ *\d+  applied ", said, re.MULTILINE)) == newest, said
    full = tables()
    assert "convo" in " ".join(full), full
    # Without --drop-data nothing goes, and the list says what would.
    said = troupe("migrate", "down", "--to=1", *place.options, status=1, says="then add --drop-data.")
    assert len(re.findall(r"^ *\d+  (drops|keeps) data ", said, re.MULTILINE)) == newest - 1, said
    assert tables() == full
    # Every .down alone, so that none hides behind another.
    for version in reversed(range(newest)):
        troupe("migrate", "down", "--to", str(version), "--drop-data", *place.options, says=f"schema version {version} of {newest}")
    assert tables() == ["troupe_migrations"], f"left behind: {tables()}"
    said = troupe("migrate", "status", *place.options, says=f"schema version 0 of {newest}")
    assert len(re.findall(r"^ *\d+  missing ", said, re.MULTILINE)) == newest, said
    troupe("migrate", "down", "--to", "1", *place.options, status=1, says="1 is not down from there")
    troupe("migrate", "up", "3", *place.options, says=f"schema version 3 of {newest} (was 0)")
    troupe("migrate", "up", "2", *place.options, status=1, says="2 is not up from there")
    troupe("migrate", "up", *place.options, says=f"schema version {newest} of {newest} (was 3)")
    troupe("migrate", "up", str(newest + 1), *place.options, status=1, says="there is no version")
    assert tables() == full
    troupe("verify", *place.options, says="sound")
    troupe("check", "delivery", *place.options, says="sound")
    # What came up the second time is what a server works with, also one that may not migrate.
    server = serving.Server(place.folder, "--dev", "--set", "sql.migrate=off", *place.more)
    serving.create_convo(server, place.folder, "again")
    server.end()


class Manual:
    """The scripts for one kind of database in docs/operations.md, as they are printed but for places and the time."""

    def __init__(self, folder, kind):
        with open(os.path.join(serving.ROOT, "docs/operations.md"), encoding="utf-8") as file:
            found = re.findall(rf"^```sh\n(# {kind}[^\n]*: a script.*?)^```$", file.read(), re.DOTALL | re.MULTILINE)
        self.back_up, self.restore = found
        self.folder = folder
        self.bin = os.path.join(folder, "bin")
        os.mkdir(self.bin)
        os.symlink(serving.TROUPE, os.path.join(self.bin, "troupe"))
        with open(os.path.join(self.bin, "date"), "w", encoding="ascii") as file:
            file.write("#!/bin/sh\necho $NOW\n")
        os.chmod(os.path.join(self.bin, "date"), 0o755)

    def run(self, script, place, now, status=0):
        script = re.sub(r"^backup=backup/\d.*$", f"backup=backup/{now}", script, flags=re.MULTILINE)
        script = script.replace("/var/lib/troupe", place.data)
        if place.more:
            script = script.replace("postgresql://troupe@db.internal/troupe", shlex.quote(place.more[1]))
        done = subprocess.run(["sh", "-c", script], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False,
                              env=serving.environment(NOW=now, PATH=self.bin + ":" + os.environ["PATH"]))
        assert done.returncode == status, f"exit status {done.returncode}, not {status}: {script}{done.stdout}{done.stderr}"


def follow(manual, old, new):
    server = old.serve()
    serving.create_convo(server, old.folder, "first")
    with open(os.path.join(old.folder, "file"), "wb") as file:
        file.write(packing.content(1, 100_000))
    packing.run(server, "packs", "push", "file", "--name", "core", "--version", "1", "--data", old.data)
    manual.run(manual.back_up, old, "monday")
    serving.create_convo(server, old.folder, "second")
    manual.run(manual.back_up, old, "monday", status=1)  # never today's files beside yesterday's database
    manual.run(manual.back_up, old, "tuesday")
    serving.create_convo(server, old.folder, "third")
    server.end()

    manual.run(manual.restore, new, "tuesday")
    server = new.serve()
    assert [epoch_of(server, convo) for convo in ("first", "second", "third")] == [0, 0, None]
    packing.run(server, "packs", "get", "core", "--data", new.data, "--out", "copy")
    with open(os.path.join(new.folder, "copy"), "rb") as file:
        assert file.read() == packing.content(1, 100_000)
    server.end()
    for name in ("receipts.key", "admin.token"):
        with open(os.path.join(old.data, name), "rb") as one, open(os.path.join(new.data, name), "rb") as other:
            assert one.read() == other.read(), f"{name} is not the one that was backed up"


def the_scripts_of_the_manual_on_sqlite(folder):
    keys(folder)
    follow(Manual(folder, "SQLite"), Place(folder, "old"), Place(folder, "new"))


def the_scripts_of_the_manual_on_postgresql(folder):
    urls = [serving.Databases.make() for _ in range(2)]
    if None in urls:
        return "PostgreSQL is not installed"
    keys(folder)
    follow(Manual(folder, "PostgreSQL"), Place(folder, "old", urls[0]), Place(folder, "new", urls[1]))
    return None


def on_sqlite(folder):
    keys(folder)
    old, new = Place(folder, "old"), Place(folder, "new")
    troupe("backup", os.path.join(folder, "none"), *old.options, status=1, says="There is no database at")
    troupe("migrate", "status", *old.options, status=1, says="There is no database at")
    file = back_up_and_restore(folder, old, new)
    os.chmod(file, 0o400)
    before = sorted(os.listdir(folder))
    troupe("verify", file, says="sound")
    assert sorted(os.listdir(folder)) == before, "verifying a backup has left something beside it"
    os.chmod(file, 0o600)
    refuse_damage(file, new)
    server = new.serve()
    troupe("verify", *new.options, status=1, says="make a backup and verify it")
    troupe("check", "delivery", *new.options, status=2, says=f"troupe backup copy.db --data {new.data}")
    server.end()

    def tables():
        done = subprocess.run([sys.executable, "-c", "import sqlite3, sys; print(*[row[0] for row in sqlite3.connect("
                               "sys.argv[1]).execute(\"SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT "
                               "LIKE 'sqlite_%' ORDER BY name\")])", os.path.join(new.data, "troupe.db")],
                              capture_output=True, text=True, check=True)
        return done.stdout.split()

    walk_migrations(new, tables)


def on_postgresql(folder):
    postgres = serving.Postgres(folder)
    if not postgres.bin:
        return "PostgreSQL is not installed"
    postgres.make()
    os.environ["PATH"] = postgres.bin + ":" + os.environ["PATH"]
    keys(folder)

    def psql(text, database="postgres"):
        return subprocess.run([f"{postgres.bin}/psql", "-XAtq", "-h", postgres.folder, "-U", "troupe", "-d", database, "-c",
                               text], capture_output=True, text=True, check=True).stdout.split()

    psql("CREATE DATABASE other")
    old = Place(folder, "old", postgres.url)
    new = Place(folder, "new", postgres.url.replace("///postgres", "///other"))
    file = back_up_and_restore(folder, old, new)
    refuse_damage(file, new)
    # The data directory is not what keeps others out: a server on another machine has the database.
    elsewhere = Place(folder, "elsewhere", new.options[-1])
    server = new.serve()
    troupe("restore", file, *elsewhere.options, status=1, says="a server has this database open")
    troupe("migrate", "down", "--to", "0", *elsewhere.options, status=1, says="another server has this PostgreSQL database")
    troupe("verify", *elsewhere.options, says="sound")
    troupe("migrate", "status", *elsewhere.options, says="schema version")
    server.end()
    walk_migrations(new, lambda: psql("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1", "other"))
    return None


if __name__ == "__main__":
    sys.exit(serving.run_cases([on_sqlite, on_postgresql, the_scripts_of_the_manual_on_sqlite,
                                the_scripts_of_the_manual_on_postgresql]))
