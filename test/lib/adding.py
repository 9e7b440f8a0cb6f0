# SPDX-License-Identifier: Apache-2.0
"""Load whose outcome can be checked to the last request: numbered addMembers, each with an idempotency key of its own.
What was acknowledged must be stored with the epoch that was told; what was not is sent again and must be stored once."""
import http.client
import itertools
import subprocess
import threading
import time

import serving

THREADS = 6


def check_stored(server, *arguments):
    """`troupe check delivery` finds nothing wrong in what a server left behind."""
    done = subprocess.run([serving.TROUPE, "check", "delivery", "--data", server.data, *arguments], capture_output=True,
                          text=True, timeout=serving.LIMIT_S, check=False, env=serving.environment())
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}{done.stderr}"


class Ledger:
    """Every add, and what was said about it."""

    def __init__(self, folder):
        self.folder = folder
        self.lock = threading.Lock()
        self.acked = {}  # (convo, member): epoch
        self.open = set()  # (convo, member) that may or may not be stored
        self.errors = {}  # status: how many
        self.is_dark = False  # what is said now reaches nobody
        self.numbers = itertools.count()
        self.tokens = []
        self.tokens_made_s = 0.0

    def token(self):
        with self.lock:
            if not self.tokens or time.monotonic() > self.tokens_made_s + 30:  # they live for a minute
                self.tokens = serving.tokens(self.folder, "addMembers", 1500)
                self.tokens_made_s = time.monotonic()
            return self.tokens.pop()

    def send(self, server, connection, convo, member):
        """One add. True: it is stored. Sent again, it gets the answer it would have got."""
        status, answer = serving.call(server, self.folder, "addMembers",
                                      {"convoId": convo, "didList": [member], "idempotencyKey": f"add-{member}"},
                                      token=self.token(), connection=connection)
        with self.lock:
            assert answer.get("error") != "AlreadyMember", f"{member} was refused because of itself: {answer}"
            if self.is_dark:
                return False
            if status == 200:
                self.acked[convo, member] = answer["newEpoch"]
                self.open.discard((convo, member))
            else:
                self.errors[status] = self.errors.get(status, 0) + 1
        return status == 200

    def load(self, server, convos, stop):
        """Threads that add until `stop` is set; a connection that breaks is made anew until then."""

        def client():
            connection = http.client.HTTPConnection(server.public, timeout=serving.LIMIT_S)
            while not stop.is_set():
                number = next(self.numbers)
                pair = convos[number % len(convos)], f"did:example:{number}"
                with self.lock:
                    self.open.add(pair)
                try:
                    if not self.send(server, connection, *pair):
                        stop.wait(0.01)
                except (OSError, http.client.HTTPException):
                    connection.close()
                    stop.wait(0.01)
            connection.close()

        threads = [threading.Thread(target=client) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        return threads

    def settle(self, server):
        """Send again what nobody answered for."""
        for pair in sorted(self.open):
            serving.wait_until(lambda pair=pair: self.send(server, None, *pair), f"{pair} is stored")

    def check(self, server, convos):
        """What the server tells is what was acknowledged, and nothing else."""
        for convo in convos:
            mine = {member: epoch for (of, member), epoch in self.acked.items() if of == convo}
            told = list(mine.values())
            assert len(told) == len(set(told)), f"{convo}: an epoch was given twice: {sorted(told)}"
            epochs = []
            while True:
                first = epochs[-1] + 1 if epochs else 0
                status, answer = serving.call(server, self.folder, "getCommits",
                                              query=f"?convoId={convo}&fromEpoch={first}")
                assert status == 200, (status, answer)
                if not answer["commits"]:
                    break
                epochs += [commit["epoch"] for commit in answer["commits"]]
            assert epochs == list(range(1, len(epochs) + 1)), f"{convo}: epochs {epochs}"
            lost = sorted(set(told) - set(epochs))
            assert not lost, f"{convo}: acknowledged and lost: {lost}"
            adds = set(mine)
            assert len(epochs) == len(adds), f"{convo}: {len(epochs)} epochs for {len(adds)} adds"
            status, answer = serving.call(server, self.folder, "getConvo", query=f"?convoId={convo}")
            assert status == 200 and answer["epoch"] == len(epochs), (status, answer.get("epoch"), len(epochs))
            members = {member["did"] for member in answer["members"]}
            assert adds <= members, f"{convo}: members lost: {sorted(adds - members)}"
            assert len(members) == len(adds) + 1, f"{convo}: {len(members)} members for {len(adds)} adds"
