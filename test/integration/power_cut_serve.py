#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The power fails under load, on each database: the file system that holds everything is shut down without writing back
what the kernel still has. After a new mount nothing that was acknowledged is lost, no epoch was given twice, and `troupe
check delivery` finds nothing wrong; unread counts are exact. Five times, 200 with TROUPE_LONG. Needs root, for a file
system of its own."""
import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
# pylint: disable=wrong-import-position
import adding
import serving
import talking

CUTS = 200 if serving.LONG else 5
CLONE_NEWNS = 0x20000
EXT4_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
WITHOUT_FLUSH = 2


class Disk:
    """An ext4 in a file, mounted where only this process and its children see it."""

    def __init__(self):
        # Not in the folder of the case: that one is removed by who does not see the mount.
        self.home = tempfile.mkdtemp()
        self.image = os.path.join(self.home, "image")
        self.folder = os.path.join(self.home, "disk")
        os.chmod(self.home, 0o755)
        os.mkdir(self.folder)
        with open(self.image, "wb") as file:
            file.truncate(768 << 20)

    def begin(self):
        """What is missing to do it, or None."""
        if os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
            return "a mount of its own needs root"
        if not shutil.which("mkfs.ext4"):
            return "mkfs.ext4 is not installed"
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)
        return None if self.mount() else "there is no loop device"

    def mount(self):
        return subprocess.run(["mount", "-o", "loop", self.image, self.folder], check=False).returncode == 0

    def cut_power(self):
        place = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(place, EXT4_SHUTDOWN, struct.pack("I", WITHOUT_FLUSH))
        finally:
            os.close(place)

    def restore(self):
        # Whoever was killed may be about to let go of its files.
        serving.wait_until(lambda: subprocess.run(["umount", self.folder], check=False, capture_output=True).returncode == 0,
                           "nobody uses the disk any more")
        assert self.mount(), "the disk cannot be mounted again"

    def end(self):
        subprocess.run(["umount", "-l", self.folder], check=False, capture_output=True)
        shutil.rmtree(self.home, ignore_errors=True)


def kill_postgres(postgres):
    """It goes with the power: nobody has time to say goodbye. All of it: one who waits for a lock that a dead one holds
    does not notice that the others are gone."""
    with open(os.path.join(postgres.data, "postmaster.pid"), encoding="ascii") as file:
        pid = int(file.readline())

    def kill():
        os.kill(pid, signal.SIGSTOP)  # so that nobody is born meanwhile
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
        for one in (pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    return kill


def start_postgres(postgres):
    # After a start of the machine the number in these would be nobody's; here it may be a process that is not reaped yet.
    os.unlink(os.path.join(postgres.data, "postmaster.pid"))
    os.unlink(os.path.join(postgres.folder, ".s.PGSQL.5432.lock"))
    postgres.start()


def cut_again_and_again(disk, postgres=None):
    seed = int(os.environ.get("TROUPE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    chance = random.Random(seed)
    # Keys and log are not on the disk that fails; what is stored is.
    with tempfile.TemporaryDirectory() as folder:
        ledger, talk = adding.Ledger(folder), talking.Talk(folder)
        arguments = ["--data", os.path.join(disk.folder, "data")]
        arguments += ["--db", postgres.url] if postgres else []
        try:
            convos = []
            for cut in range(CUTS):
                server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
                ledger.settle(server)
                ledger.check(server, convos[-3:])
                if convos:
                    talk.settle(server)
                    talk.check(server)
                else:
                    talk.make(server)
                recent = [f"convo-{cut}-{number}" for number in range(3)]
                for convo in recent:
                    serving.create_convo(server, folder, convo)
                convos += recent
                stop = threading.Event()
                enough = len(ledger.acked) + chance.randrange(1, 120)
                threads = ledger.load(server, recent, stop) + talk.load(server, stop, chance)
                cut_once(disk, postgres, server, (ledger, talk), (stop, threads), enough)
                disk.restore()
                if postgres:
                    start_postgres(postgres)
                adding.check_stored(server, *arguments)
            server = serving.Server(folder, "--dev", *serving.FAST, *arguments)
            ledger.settle(server)
            ledger.check(server, convos)
            talk.settle(server)
            talk.check(server)
            server.end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    print(f"# {CUTS} power cuts, {len(ledger.acked)} adds acknowledged, lost 0; {len(talk.acked)} messages, unread counts of "
          f"{len(talking.PEOPLE)} people right after each; errors {ledger.errors}")


def cut_once(disk, postgres, server, books, load, enough):
    end_postgres = kill_postgres(postgres) if postgres else lambda: None
    stop, threads = load
    try:
        serving.wait_until(lambda: len(books[0].acked) >= enough, f"{enough} adds")
        # The file system goes down within a millisecond or two, not at once, and a sync meanwhile may say yes in vain. Of
        # a machine without power nobody hears that.
        for book in books:
            with book.lock:
                book.is_dark = True
        disk.cut_power()
    finally:
        server.kill()
        end_postgres()
        stop.set()
        for thread in threads:
            thread.join(serving.LIMIT_S)
        for book in books:
            book.is_dark = False
    if postgres:
        serving.Postgres.alive.remove(postgres)


def on_a_disk(case):
    disk = Disk()
    try:
        return disk.begin() or case(disk)
    finally:
        disk.end()


def nothing_is_lost_on_sqlite(_folder):
    return on_a_disk(cut_again_and_again)


def nothing_is_lost_on_postgresql(_folder):
    def case(disk):
        postgres = serving.Postgres(disk.folder)
        if not postgres.bin:
            return "PostgreSQL is not installed"
        postgres.make()
        os.sync()  # what initdb made: it did not sync by itself
        try:
            return cut_again_and_again(disk, postgres)
        finally:
            if postgres in serving.Postgres.alive:
                postgres.stop()

    return on_a_disk(case)


if __name__ == "__main__":
    sys.exit(serving.run_cases([nothing_is_lost_on_sqlite, nothing_is_lost_on_postgresql]))
