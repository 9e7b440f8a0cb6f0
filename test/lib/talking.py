# SPDX-License-Identifier: Apache-2.0
"""Load whose unread counts can be checked to the last message: a few people talk in one conversation and read what the
others say. What was not answered for is sent again under its id, a cursor is moved again; then everybody has as many
unread as there are messages of others behind its cursor."""
import base64
import http.client
import itertools
import json
import random
import struct
import threading
import time

import serving

PEOPLE = ("ada", "ben", "cay", "dan")
CONVO = "talk"


def private_message(text):
    """A PrivateMessage as far as a server looks into it (RFC 9420 section 6.3); of a numbered conversation any epoch will
    do. No part of it is longer than 63 bytes, so a size is a byte."""
    parts = b"".join(bytes([len(part)]) + part for part in (b"", b"sender data of 28 bytes ....", text.encode()))
    return struct.pack(">HHB", 1, 2, len(CONVO)) + CONVO.encode() + struct.pack(">QB", 1, 1) + parts


def did_of(token):
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["iss"]


class Talk:
    """Every message and every cursor, and what was said about it."""

    def __init__(self, folder):
        self.folder = folder
        self.lock = threading.Lock()
        self.acked = {}  # message: (sender, seq)
        self.open = {}  # message that may or may not be stored: sender
        self.cursors = {}  # person: everything up to here is read
        self.moves = {}  # person: cursor that may or may not be moved
        self.is_dark = False  # what is said now reaches nobody
        self.numbers = itertools.count()
        self.pools = {}  # (person, call): tokens, when they were made

    def token(self, person, name):
        with self.lock:
            pool, made_s = self.pools.get((person, name), ([], 0.0))
            if not pool or time.monotonic() > made_s + 30:  # they live for a minute
                pool = serving.tokens(self.folder, name, 200, person)
                self.pools[person, name] = pool, time.monotonic()
            return pool.pop()

    def ask(self, server, connection, person, name, body=None):
        return serving.call(server, self.folder, name, body, token=self.token(person, name), connection=connection)

    def make(self, server):
        serving.create_convo(server, self.folder, CONVO)
        others = [did_of(self.token(person, "getUnread")) for person in PEOPLE[1:]]
        status, answer = self.ask(server, None, "ada", "addMembers", {"convoId": CONVO, "didList": others})
        assert status == 200, (status, answer)
        self.cursors = {person: 2 for person in PEOPLE}  # nothing was said before that

    def say(self, server, connection, message):
        """One message. True: it is stored. Sent again, it gets the answer it would have got."""
        sender = self.open[message]
        status, answer = self.ask(server, connection, sender, "sendMessage", {
            "convoId": CONVO, "msgId": message, "epoch": 1,
            "ciphertext": {"$bytes": base64.b64encode(private_message(message)).decode()}})
        with self.lock:
            assert status == 200 or status >= 500, (status, answer)
            if status != 200 or self.is_dark:
                return False
            self.acked[message] = sender, answer["seq"]
            del self.open[message]
        return True

    def move(self, server, connection, person):
        """One cursor. True: it is moved."""
        seq = self.moves[person]
        status, answer = self.ask(server, connection, person, "updateCursor", {"convoId": CONVO, "seq": seq})
        with self.lock:
            assert status == 200 or status >= 500, (status, answer)
            if status != 200 or self.is_dark:
                return False
            self.cursors[person] = max(self.cursors[person], seq)
            del self.moves[person]
        return True

    def client(self, server, stop, person, chance):
        """Talks, and reads some of what it knows to be there."""
        connection = http.client.HTTPConnection(server.public, timeout=serving.LIMIT_S)
        while not stop.is_set():
            try:
                if person not in self.moves and self.acked and chance.random() < 0.4:
                    with self.lock:
                        self.moves[person] = chance.choice(list(self.acked.values()))[1]
                    is_done = self.move(server, connection, person)
                else:
                    message = f"message-{next(self.numbers)}"
                    with self.lock:
                        self.open[message] = person
                    is_done = self.say(server, connection, message)
            except (OSError, http.client.HTTPException):
                connection.close()
                is_done = False
            if not is_done:
                stop.wait(0.01)
        connection.close()

    def load(self, server, stop, chance):
        threads = [threading.Thread(target=self.client, args=(server, stop, person, random.Random(chance.random())))
                   for person in PEOPLE]
        for thread in threads:
            thread.start()
        return threads

    def settle(self, server):
        """Send again what nobody answered for."""
        for message in sorted(self.open):
            serving.wait_until(lambda message=message: self.say(server, None, message), f"{message} is stored")
        for person in sorted(self.moves):
            serving.wait_until(lambda person=person: self.move(server, None, person), f"the cursor of {person} is moved")

    def check(self, server):
        """Nobody has one more or less unread than was said behind its cursor."""
        seqs = [seq for _, seq in self.acked.values()]
        assert len(seqs) == len(set(seqs)), "a number was given twice"
        for person in PEOPLE:
            status, answer = self.ask(server, None, person, "getUnread")
            wanted = sum(1 for sender, seq in self.acked.values() if sender != person and seq > self.cursors[person])
            assert status == 200, (status, answer)
            assert answer["conversations"][CONVO] == wanted, (
                f"{person} has read to {self.cursors[person]}: told {answer['conversations'][CONVO]} unread, and {wanted} are")
