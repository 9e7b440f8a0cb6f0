#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Cross-encryption of three libraries: ours, libolm and vodozemac, from a seed and without a server. Events travel over pipes:
`driver ours`, `driver libolm` and vodozemac.mjs (vodozemac inside matrix-sdk-crypto-wasm) run as processes.

    vodozemac.py [--seed N] [--seeds N]

Every seed makes a device of each library, and conversations of each pair and kind: Olm, Megolm, SAS, key export. Messages are
reordered, lost, doubled and changed. A plaintext must be equal at both ends; a message that one library must refuse, all refuse
for the same reason. A seed that fails is printed; --seed repeats it."""
import argparse
import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../lib"))
import npm  # noqa: E402  # pylint: disable=wrong-import-position
from serving import LONG, ROOT  # noqa: E402  # pylint: disable=wrong-import-position

SEEDS, SEEDS_LONG = 6, 84  # 12 conversations a seed
SENDS_MAX = 24  # of one side: the libraries keep the keys of 40 skipped messages
CHAINS_MAX = 3  # a message that is further back is as good as lost: the libraries keep 5
JS = os.path.join(ROOT, "build/matrix/js")
ROOM = "!room:x"
OLM, MEGOLM = "m.olm.v1.curve25519-aes-sha2", "m.megolm.v1.aes-sha2"
# The class of a refusal, by the name that a driver gives it. libolm says BAD_MESSAGE_MAC of an Olm message for every key that it
# does not have.
CLASSES = {"MX_EFORMAT": "format", "MX_EVERSION": "version", "MX_EMAC": "mac", "MX_ESIGNATURE": "signature",
           "MX_EONETIME": "one-time key", "MX_ESESSION": "session", "MX_EINDEX": "index", "MX_EGAP": "gap",
           "BAD_MESSAGE_FORMAT": "format", "BAD_MESSAGE_VERSION": "version", "BAD_MESSAGE_MAC": "mac",
           "BAD_MESSAGE_KEY_ID": "one-time key", "BAD_SIGNATURE": "signature", "UNKNOWN_MESSAGE_INDEX": "index"}
# The same for vodozemac: 1 is an index that is not known, 6 any other failure. Of Megolm its text says more; of Olm it says
# nothing, so each class is as good.
VODOZEMAC_INDEX, VODOZEMAC_FAILED = 1, 6
VODOZEMAC_TEXTS = {"signature was invalid": "signature", "have a valid version": "version", "decode Protobuf": "format"}
INDEX = {"index"}
# The classes of a message whose part was changed. A frame is a tag or a length: the rest may still be read, as another message.
OLM_PARTS = {"version": {"version"}, "frame": {"format", "mac", "index", "gap"},
             "outer frame": {"format", "version", "one-time key", "session"},
             "ratchet key": {"mac", "index"}, "index": {"mac", "index", "gap"}, "ciphertext": {"mac"}, "mac": {"mac"},
             "outer version": {"version"}, "one-time key": {"one-time key"}, "base key": {"one-time key", "mac"},
             "identity key": {"session"}}
MEGOLM_PARTS = {"version": {"version"}, "frame": {"format", "signature"}, "index": {"signature"}, "ciphertext": {"signature"},
                "mac": {"signature"}, "signature": {"signature"}}
# libolm has one reason for the identity key of another and for a one-time key that is not known.
LIBOLM_PARTS = {**OLM_PARTS, "identity key": {"one-time key"}}
DOUBLED = {"ours": {"index", "one-time key"}, "libolm": {"mac", "one-time key"}, "vodozemac": {"unreadable"}}
# The fields of messages by their tags, and the bytes after them.
FIELDS = {"pre-key": {0x0A: "one-time key", 0x12: "base key", 0x1A: "identity key", 0x22: "message"},
          "olm": {0x0A: "ratchet key", 0x10: "index", 0x22: "ciphertext"}, "megolm": {0x08: "index", 0x12: "ciphertext"}}
TAILS = {"pre-key": [], "olm": ["mac"] * 8, "megolm": ["mac"] * 8 + ["signature"] * 64}


class Refused(Exception):
    """The reason is in `code`: a name of a driver's, or a number of vodozemac's."""

    def __init__(self, code, text=""):
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text

    def kind(self):
        """Its class; of a refusal that has none the code."""
        if self.code == VODOZEMAC_INDEX:
            return "index"
        if self.code == VODOZEMAC_FAILED:
            return next((name for text, name in VODOZEMAC_TEXTS.items() if text in self.text), "unreadable")
        return CLASSES.get(self.code, self.code)


def check(is_good, *what):
    if not is_good:
        raise AssertionError(" ".join(str(it) for it in what))


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hexed(text):
    return text.encode().hex() or "-"


def unhexed(text):
    return bytes.fromhex("" if text == "-" else text).decode()


def unpadded(data):
    return base64.b64encode(data).decode().rstrip("=")


def decoded(text):
    return base64.b64decode(text + "=" * (-len(text) % 4))


def read_number(data, place):
    """A number of seven bits a byte, and the place after it."""
    value = shift = 0
    while True:
        byte, place = data[place], place + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place


def parts_of(data, kind):
    """The name of the part that each byte of a message belongs to."""
    outer = "outer " if kind == "pre-key" else ""
    parts, place = [outer + "version"], 1
    while place < len(data) - len(TAILS[kind]):
        name = FIELDS[kind][data[place]]
        number, start = read_number(data, place + 1)
        if data[place] & 7 == 0:
            parts += [outer + "frame"] + [name] * (start - place - 1)
            place = start
        else:
            inside = data[start:start + number]
            parts += [outer + "frame"] * (start - place) + (parts_of(inside, "olm") if name == "message" else [name] * number)
            place = start + number
    return parts + TAILS[kind]


def change(dice, body, kind, untouched=()):
    """Another character in a part of the message, not at the end: the last one may have bits that mean nothing. Returns the body
    and the names of the parts that differ: a character may have bits of two."""
    parts = parts_of(decoded(body), kind)
    part = dice.choice(sorted(set(parts) - set(untouched)))
    place = min(dice.choice([number for number, name in enumerate(parts) if name == part]) * 4 // 3, len(body) - 3)
    changed = body[:place] + ("A" if body[place] != "A" else "B") + body[place + 1:]
    differ = {name for name, former, byte in zip(parts, decoded(body), decoded(changed)) if former != byte}
    return change(dice, body, kind, untouched) if differ & set(untouched) else (changed, differ)


def classes_of(parts, table):
    return set().union(*(table[part] for part in parts))


# ---- processes -----------------------------------------------------------------------------------------------------------------

class Process:
    def __init__(self, command, folder=None):
        # pylint: disable=consider-using-with  # it ends in stop()
        self.pipe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)

    def line(self, text):
        self.pipe.stdin.write(text + "\n")
        self.pipe.stdin.flush()
        answer = self.pipe.stdout.readline()
        check(answer, f"{self.pipe.args[0]} has ended at {text[:100]}")
        return answer.rstrip("\n")

    def stop(self):
        self.pipe.stdin.close()
        self.pipe.wait()


class Driver(Process):
    def call(self, verb, *words):
        status, *results = self.line(" ".join((verb, *(str(it) for it in words)))).split(" ")
        if status != "ok":
            raise Refused(results[0], " ".join(results[1:]))
        return results


class Vodozemac(Process):
    def call(self, name, **values):
        answer = json.loads(self.line(json.dumps({"do": name, **values})))
        if "error" in answer:
            raise Refused(answer["code"], answer["error"])
        return answer


# ---- devices -------------------------------------------------------------------------------------------------------------------

class Device:
    """A device of one library. The two kinds have the same methods: Olm by texts, Megolm by content, keys by session key."""

    def __init__(self, name):
        self.name, self.user, self.device = name, f"@{name}:x", f"{name.upper()}DEV"

    def keys_upload(self, curve, ed):
        self.curve, self.ed = curve, ed  # pylint: disable=attribute-defined-outside-init  # part of each init

    def __str__(self):
        return self.name

    def event(self, kind, content):
        return {"type": kind, "sender": self.user, "content": content}


class DriverDevice(Device):
    def __init__(self, name, driver):
        super().__init__(name)
        self.driver = driver
        self.account, curve, ed = driver.call("account")
        self.keys_upload(curve, ed)
        self.sessions = {}  # user: number
        self.inbounds = {}  # Megolm session id: number

    def sign(self, value):
        signature, = self.driver.call("sign", self.account, hexed(canonical(value)))
        return {**value, "signatures": {self.user: {f"ed25519:{self.device}": signature}}}

    def device_keys(self):
        return self.sign({"user_id": self.user, "device_id": self.device, "algorithms": [OLM, MEGOLM],
                          "keys": {f"curve25519:{self.device}": self.curve, f"ed25519:{self.device}": self.ed}})

    def one_time(self):
        key, = self.driver.call("one_time", self.account)
        return self.sign({"key": key})

    def meet(self, peer):
        self.sessions[peer.user], = self.driver.call("olm_out", self.account, peer.curve, peer.one_time()["key"])

    def can_send(self, peer):
        return peer.user in self.sessions

    def seal(self, peer, kind, content):
        plain = {"type": kind, "content": content, "sender": self.user, "recipient": peer.user,
                 "recipient_keys": {"ed25519": peer.ed}, "keys": {"ed25519": self.ed}}
        number, body = self.driver.call("olm_encrypt", self.sessions[peer.user], hexed(json.dumps(plain)))
        return self.event("m.room.encrypted", {"algorithm": OLM, "sender_key": self.curve,
                                               "ciphertext": {peer.curve: {"type": int(number), "body": body}}})

    def open(self, peer, event):
        """Returns the plaintext's content."""
        message = event["content"]["ciphertext"][self.curve]
        session, kind, body = self.sessions.get(peer.user), message["type"], message["body"]
        is_known = session is not None and (kind == 1 or self.driver.call("olm_matches", session, body) == ["1"])
        if is_known:
            text, = self.driver.call("olm_decrypt", session, kind, body)
        elif kind == 1:
            raise Refused("MX_ESESSION")
        else:
            number, text = self.driver.call("olm_in", self.account, peer.curve, body)
            self.sessions[peer.user] = number
        plain = json.loads(unhexed(text))
        check((plain["sender"], plain["recipient"]) == (peer.user, self.user), "an envelope of others", plain)
        check(plain["keys"]["ed25519"] == peer.ed and plain["recipient_keys"]["ed25519"] == self.ed, "other keys", plain)
        if plain["type"] == "m.room_key":
            self.take_key(plain["content"]["session_key"])
        return plain["content"]

    def take_key(self, key, verb="inbound"):
        number, name = self.driver.call(verb, key)
        self.inbounds[name] = number
        return name

    def group(self):
        return DriverGroup(self)

    def open_room(self, event):
        content = event["content"]
        if content["session_id"] not in self.inbounds:
            raise Refused("no key")
        text, index = self.driver.call("inbound_decrypt", self.inbounds[content["session_id"]], content["ciphertext"])
        plain = json.loads(unhexed(text))
        check(plain["room_id"] == ROOM, "another room", plain)
        return plain["content"], int(index)

    def export(self, name, index=0):
        text, = self.driver.call("inbound_export", self.inbounds[name], index)
        return text


class DriverGroup:
    """A sending session."""

    def __init__(self, owner):
        self.owner = owner
        self.number, self.name = owner.driver.call("group")
        owner.take_key(self.key())

    def key(self):
        return self.owner.driver.call("group_key", self.number)[0]

    def share(self, peer):
        content = {"algorithm": MEGOLM, "room_id": ROOM, "session_id": self.name, "session_key": self.key()}
        check(peer.open(self.owner, self.owner.seal(peer, "m.room_key", content)) is not None, "the key does not arrive")

    def encrypt(self, text):
        plain = {"type": "org.troupe.test", "content": {"text": text}, "room_id": ROOM}
        body, = self.owner.driver.call("group_encrypt", self.number, hexed(json.dumps(plain)))
        return {"algorithm": MEGOLM, "session_id": self.name, "ciphertext": body, "sender_key": self.owner.curve,
                "device_id": self.owner.device}


class MachineDevice(Device):
    def __init__(self, name, vodozemac):
        super().__init__(name)
        self.vodozemac = vodozemac
        opened = vodozemac.call("open", user=self.user, device=self.device)
        self.machine = opened["machine"]
        keys = next(it["device_keys"] for it in opened["uploads"] if it.get("device_keys"))["keys"]
        self.keys_upload(keys[f"curve25519:{self.device}"], keys[f"ed25519:{self.device}"])
        self.one_times = [key for it in opened["uploads"] for key in it.get("one_time_keys", {}).values()]
        self.met = set()
        self.outbox = []  # messages to devices that the machine has sent by itself

    def call(self, name, **values):
        answer = self.vodozemac.call(name, machine=self.machine, **values)
        self.outbox += answer.get("sent", [])
        return answer

    def know(self, peer):
        self.call("know", user=peer.user, devices={peer.device: peer.device_keys()},
                  oneTime={peer.device: {"signed_curve25519:AAAAAQ": peer.one_time()}})

    def one_time(self):
        return self.one_times.pop()

    def meet(self, peer):
        check(self.call("claim", user=peer.user)["claimed"], "vodozemac claims no key")
        self.met.add(peer.user)

    def can_send(self, peer):
        return peer.user in self.met

    def seal(self, peer, kind, content):
        check(kind == "org.troupe.test", kind)
        answer = self.call("encrypt", user=peer.user, device=peer.device, text=content["text"])
        return self.event("m.room.encrypted", answer["content"])

    def open(self, peer, event):
        taken, = self.call("receive", events=[event])["events"]
        if taken["type"] == "m.room.encrypted":
            raise Refused(6)
        check(taken["sender"] == peer.user, "another sender", taken)
        self.met.add(peer.user)
        return taken["content"]

    def group(self):
        return MachineGroup(self)

    def open_room(self, event):
        taken = self.call("decrypt_room", room=ROOM, event=event)["event"]
        return taken["content"], None


class MachineGroup:
    def __init__(self, owner):
        self.owner, self.shared, self.name = owner, [], None

    def share(self, peer):
        self.shared.append(peer.user)
        for sent in self.owner.call("share", room=ROOM, users=self.shared)["sent"]:
            content = sent["messages"].get(peer.user, {}).get(peer.device)
            if content is not None:
                self.name = peer.open(self.owner, self.owner.event(sent["type"], content))["session_id"]
        self.owner.outbox.clear()

    def encrypt(self, text):
        if not self.shared:  # a key for nobody: the first receiver comes later
            self.owner.call("share", room=ROOM, users=[])
        content = self.owner.call("encrypt_room", room=ROOM, text=text)["content"]
        self.name = content["session_id"]
        return content


# ---- olm -----------------------------------------------------------------------------------------------------------------------

class Mail:
    def __init__(self, event, text, chain):
        self.event, self.text, self.chain = event, text, chain


def with_body(event, curve, body):
    changed = json.loads(json.dumps(event))
    changed["content"]["ciphertext"][curve]["body"] = body
    return changed


def must_refuse(open_it, classes, what):
    """Returns the class."""
    try:
        open_it()
    except Refused as refusal:
        check(refusal.kind() in classes, what, "is refused with another reason:", refusal, "which is none of", classes)
        return refusal.kind()
    raise AssertionError(f"{what} is accepted")


class OlmTalk:
    """Two devices talk; the mail between them is late, lost, doubled and changed."""

    def __init__(self, dice, ends):
        self.dice, self.ends = dice, ends
        self.flying = ([], [])  # to each end
        self.read = ([], [])
        self.sends = [0, 0]
        self.chain = [0, 0]  # of each sender, counted; a receipt before a send may begin a new one
        self.newest = [0, 0]  # chain that each end has read of the other
        self.has_received = [False, False]
        self.counts = {"read": 0, "lost": 0, "doubled": 0, "changed": 0}

    def send(self, end):
        me, peer = self.ends[end], self.ends[1 - end]
        if self.sends[end] >= SENDS_MAX or not me.can_send(peer):
            return
        if self.has_received[end]:
            self.chain[end] += 1
            self.has_received[end] = False
        text = "".join(self.dice.choice("abc äß€\"\\") for _ in range(self.dice.choice((0, 1, 15, 16, 17, 200))))
        self.sends[end] += 1
        self.flying[1 - end].append(Mail(me.seal(peer, "org.troupe.test", {"text": text}), text, self.chain[end]))

    def open(self, end, event):
        return self.ends[end].open(self.ends[1 - end], event)

    def deliver(self, end):
        if not self.flying[end]:
            return
        # A pre-key message is the first that can be read; after it any order goes.
        mail = self.flying[end].pop(self.dice.randrange(len(self.flying[end])))
        roll = self.dice.random()
        if roll < 0.1 or mail.chain < self.newest[end] - CHAINS_MAX:
            self.counts["lost"] += 1
            return
        if roll < 0.25:
            self.refuse_changed(end, mail.event)
        content = self.open(end, mail.event)
        check(content == {"text": mail.text}, "another plaintext:", content)
        self.counts["read"] += 1
        self.newest[end] = max(self.newest[end], mail.chain)
        self.has_received[end] = True
        self.read[end].append(mail)

    def refuse_changed(self, end, event):
        me = self.ends[end]
        message = event["content"]["ciphertext"][me.curve]
        # libolm does not check the version of a pre-key message, and reads through NULL if a tag hides its identity key.
        body, parts = change(self.dice, message["body"], "olm" if message["type"] == 1 else "pre-key",
                             ("outer version", "outer frame") if me.name == "libolm" else ())
        classes = {"ours": classes_of(parts, OLM_PARTS), "libolm": classes_of(parts, LIBOLM_PARTS),
                   "vodozemac": {"unreadable"}}[me.name]
        must_refuse(lambda: self.open(end, with_body(event, me.curve, body)), classes, f"a message with another {parts}")
        self.counts["changed"] += 1

    def double(self, end):
        if self.read[end]:
            mail = self.dice.choice(self.read[end])
            must_refuse(lambda: self.open(end, mail.event), DOUBLED[self.ends[end].name], "a second copy")
            self.counts["doubled"] += 1

    def run(self):
        for _ in range(self.dice.randrange(40, 80)):
            end = self.dice.randrange(2)
            self.dice.choices((self.send, self.deliver, self.double), (5, 4, 1))[0](end)
        for end in (0, 1):
            while self.flying[end]:
                self.deliver(end)
        return self.counts


def talk_olm(dice, world, one, other):
    ends = [world[one], world[other]]
    dice.shuffle(ends)
    ends[0].meet(ends[1])
    talk = OlmTalk(dice, ends)
    talk.send(0)
    return talk.run()


# ---- megolm --------------------------------------------------------------------------------------------------------------------

def room_event(sender, number, content):
    return {**sender.event("m.room.encrypted", content), "room_id": ROOM, "event_id": f"${number}", "origin_server_ts": number}


def refuse_changed_room(dice, receivers, event):
    """All libraries refuse the same changed event for the same reason."""
    text, parts = change(dice, event["content"]["ciphertext"], "megolm")
    changed = {**event, "content": {**event["content"], "ciphertext": text}}
    classes = classes_of(parts, MEGOLM_PARTS)
    found = {str(receiver): must_refuse(lambda: receiver.open_room(changed), classes, f"an event with another {parts}")
             for receiver in receivers}  # pylint: disable=cell-var-from-loop  # called at once
    check(len(set(found.values())) == 1, f"an event with another {parts} is refused for different reasons:", found)


def talk_megolm(dice, world, sender, others):
    """A sender and the two other libraries as receivers; each gets the key at another index."""
    me, receivers = world[sender], [world[it] for it in others]
    group = me.group()
    firsts = [dice.choice((0, 0, dice.randrange(12))) for _ in receivers]
    events, counts = [], {"read": 0, "early": 0, "changed": 0}
    for number in range(dice.randrange(12, 30)):
        for first, receiver in zip(firsts, receivers):
            if first == number:
                group.share(receiver)
        text = "".join(dice.choice("abc äß€\"\\") for _ in range(dice.choice((0, 1, 15, 16, 17, 300))))
        events.append((number, text, room_event(me, number, group.encrypt(text))))
    for first, receiver in zip(firsts, receivers):
        mail = [it for it in events if dice.random() > 0.1] + dice.sample(events, 3)  # lost, and doubled
        dice.shuffle(mail)
        for number, text, event in mail:
            if dice.random() < 0.15:
                refuse_changed_room(dice, receivers, event)
                counts["changed"] += 1
            if number < first:
                must_refuse(lambda: receiver.open_room(event), INDEX, "an early event")  # pylint: disable=cell-var-from-loop
                counts["early"] += 1
                continue
            content, index = receiver.open_room(event)
            check(content == {"text": text} and index in (None, number), "another plaintext:", content, index, number)
            counts["read"] += 1
    world["rooms"][sender] = (group, events)
    return counts


# ---- export --------------------------------------------------------------------------------------------------------------------

def export_row(me, name, key):
    return {"algorithm": MEGOLM, "room_id": ROOM, "sender_key": me.curve, "session_id": name, "session_key": key,
            "sender_claimed_keys": {"ed25519": me.ed}, "forwarding_curve25519_key_chain": []}


def read_all(receiver, events, first):
    counts = {"read": 0, "early": 0}
    for number, text, event in events:
        if number < first:
            must_refuse(lambda: receiver.open_room(event), INDEX, "an early event")  # pylint: disable=cell-var-from-loop
            counts["early"] += 1
        else:
            check(receiver.open_room(event)[0] == {"text": text}, "another plaintext")
            counts["read"] += 1
    return counts


def through_file(dice, world, rows):
    """Sealed by one library and opened by the other; libolm has no key files."""
    driver, vodozemac, rounds = world["ours"].driver, world["vodozemac"].vodozemac, dice.randrange(1, 50)
    text, passphrase = json.dumps(rows), "".join(dice.choice("abcäß€") for _ in range(dice.randrange(1, 40)))
    if dice.random() < 0.5:
        file, = driver.call("seal_file", passphrase, rounds, hexed(text))
        must_refuse(
            lambda: vodozemac.call("open_file", file=unhexed(file), passphrase=passphrase + "x"), {-1}, "a wrong passphrase")
        opened = vodozemac.call("open_file", file=unhexed(file), passphrase=passphrase)["text"]
    else:
        file = hexed(vodozemac.call("seal_file", text=text, passphrase=passphrase, rounds=rounds)["file"])
        must_refuse(lambda: driver.call("open_file", passphrase + "x", rounds, file), {"the"}, "a wrong passphrase")
        opened = unhexed(driver.call("open_file", passphrase, rounds, file)[0])
    # vodozemac writes the members that it knows, in its own order.
    opened = json.loads(opened)
    members = ("algorithm", "room_id", "sender_key", "session_id", "session_key", "sender_claimed_keys")
    check([[it[key] for key in members] for it in opened] == [[it[key] for key in members] for it in rows], "another key file")
    return opened


def talk_export(dice, world, sender):
    """The room of a sender, exported by its library and imported by new devices of the others."""
    me, (group, events) = world[sender], world["rooms"][sender]
    first = 0
    if sender == "vodozemac":
        rows = [it for it in me.call("export")["sessions"] if it["session_id"] == group.name]
        check(len(rows) == 1, "vodozemac exports no session")
    else:
        first = dice.randrange(len(events))
        rows = [export_row(me, group.name, me.export(group.name, first))]
    rows = through_file(dice, world, rows)
    counts = {"read": 0, "early": 0}
    for receiver in new_devices(world, sender):
        if isinstance(receiver, MachineDevice):
            check(receiver.call("import", sessions=rows)["count"] == 1, "vodozemac imports no session")
        else:
            check(receiver.take_key(rows[0]["session_key"], "import") == group.name, "another session")
        for key, count in read_all(receiver, events, first).items():
            counts[key] += count
        if isinstance(receiver, DriverDevice):  # it hands the same text on
            check(receiver.export(group.name, first) == rows[0]["session_key"], "another export")
    return counts


def new_devices(world, sender):
    for name in ("ours", "libolm"):
        if name != sender:
            yield DriverDevice(name + "2", world[name].driver)
    if sender != "vodozemac":
        machine = MachineDevice("vodozemac2", world["vodozemac"].vodozemac)
        yield machine
        machine.call("close")


# ---- sas -----------------------------------------------------------------------------------------------------------------------

# The codes that matrix-sdk-crypto 14.2.1 cancels with. The specification has m.mismatched_commitment and m.key_mismatch for the
# first two; a peer must take any code as the end.
CANCELS = {"commitment": "m.key_mismatch", "mac": "m.mismatched_sas", "mismatch": "m.mismatched_sas"}


class Verification:
    """A driver's side of a verification with vodozemac, event by event."""

    def __init__(self, dice, driver_device, machine):
        self.dice, self.me, self.peer = dice, driver_device, machine
        self.number, self.key = self.me.driver.call("sas")
        self.transaction, self.we_started, self.start = None, False, None
        self.machine_key = self.commitment = None
        self.fault = dice.choice((None, None, None, "mac", "commitment", "mismatch"))

    def names(self):
        return (self.me.user, self.me.device, self.peer.user, self.peer.device, self.transaction)

    def mac(self, is_theirs, key_id, text):
        return self.me.driver.call("sas_mac", self.number, *self.names(), int(is_theirs), key_id, text)[0]

    def tell(self, step, **content):
        """Hand an event to vodozemac."""
        content = {**content, "transaction_id": self.transaction}
        self.peer.call("receive", events=[self.me.event(f"m.key.verification.{step}", content)])
        return content

    def hear(self, step):
        """Take the next event of vodozemac, which must be this one."""
        check(self.peer.outbox, f"vodozemac sends no {step}")
        sent = self.peer.outbox.pop(0)
        check(sent["type"] == f"m.key.verification.{step}", f"{sent} instead of {step}")
        return sent["messages"][self.me.user][self.me.device]

    def ask(self, name):
        return self.peer.call(name, user=self.me.user, transaction=self.transaction)

    def request(self):
        methods = {"from_device": self.me.device, "methods": ["m.sas.v1"]}
        if self.dice.random() < 0.5:
            self.transaction = f"t{self.dice.randrange(10 ** 9)}"
            self.tell("request", **methods, timestamp=int(time.time() * 1000))
            self.ask("ready")
            self.hear("ready")
        else:
            answer = self.peer.call("request", user=self.me.user, device=self.me.device)
            self.transaction = answer["transaction"]
            self.hear("request")
            self.tell("ready", **methods)

    def begin(self):
        """start, accept and both keys. Returns whether vodozemac has the right commitment."""
        self.we_started = self.dice.random() < 0.5
        if self.we_started:
            self.start = self.tell(
                "start", from_device=self.me.device, method="m.sas.v1", key_agreement_protocols=["curve25519-hkdf-sha256"],
                hashes=["sha256"], message_authentication_codes=["hkdf-hmac-sha256.v2"],
                short_authentication_string=["decimal", "emoji"])
            self.ask("accept")
            self.commitment = self.hear("accept")["commitment"]
            self.tell("key", key=self.key)
            self.machine_key = self.hear("key")["key"]
            check(self.commitment == self.commit(self.machine_key), "another commitment")
            return True
        self.ask("start")
        self.start = self.hear("start")
        is_good = self.fault != "commitment"
        self.tell("accept", method="m.sas.v1", key_agreement_protocol="curve25519-hkdf-sha256", hash="sha256",
                  message_authentication_code="hkdf-hmac-sha256.v2", short_authentication_string=["decimal", "emoji"],
                  commitment=self.commit(self.key if is_good else "A" * 43))
        self.machine_key = self.hear("key")["key"]
        self.tell("key", key=self.key)
        return is_good

    def commit(self, key):
        return unpadded(hashlib.sha256((key + canonical(self.start)).encode()).digest())

    def compare(self):
        self.me.driver.call("sas_their_key", self.number, self.machine_key)
        shown = [int(it) for it in self.me.driver.call("sas_show", self.number, *self.names(), int(self.we_started))]
        theirs = self.ask("sas")
        check(shown[:3] == theirs["decimals"] and shown[3:] == theirs["emoji"], "other strings:", shown, theirs)

    def exchange(self):
        key_id = f"ed25519:{self.me.device}"
        text = self.me.ed if self.fault != "mac" else self.peer.ed
        self.ask("confirm")
        theirs, their_id = self.hear("mac"), f"ed25519:{self.peer.device}"
        check(theirs["mac"] == {their_id: self.mac(True, their_id, self.peer.ed)}, "another MAC")
        check(theirs["keys"] == self.mac(True, "KEY_IDS", their_id), "another MAC of the key ids")
        self.tell("mac", mac={key_id: self.mac(False, key_id, text)}, keys=self.mac(False, "KEY_IDS", key_id))

    def is_cancelled(self):
        code = CANCELS[self.fault]
        said = self.hear("cancel")["code"]
        check(said == code, f"{said} instead of {code}")
        check(self.ask("sas")["cancelled"] == code, "not cancelled")
        return {f"refused for {self.fault}": 1}

    def run(self):
        self.peer.outbox.clear()
        self.request()
        if not self.begin():
            return self.is_cancelled()
        self.compare()
        if self.fault == "mismatch":
            self.ask("mismatch")
            return self.is_cancelled()
        self.exchange()
        if self.fault == "mac":
            return self.is_cancelled()
        self.hear("done")
        self.tell("done")
        check(self.ask("sas")["done"], "vodozemac is not done")
        return {"verified": 1}


def talk_sas(dice, world, name):
    return Verification(dice, world[name], world["vodozemac"]).run()


def talk_sas_drivers(dice, world):
    """Ours and libolm see the same strings and compute the same MACs."""
    one, other = world["ours"], world["libolm"]
    (a, key), (b, other_key) = one.driver.call("sas"), other.driver.call("sas")
    one.driver.call("sas_their_key", a, other_key)
    other.driver.call("sas_their_key", b, key)
    ends = (one.user, one.device), (other.user, other.device)
    starts = dice.randrange(2)
    shown = [one.driver.call("sas_show", a, *ends[0], *ends[1], "txn", starts),
             other.driver.call("sas_show", b, *ends[1], *ends[0], "txn", 1 - starts)]
    check(shown[0] == shown[1], "other strings:", shown)
    macs = [one.driver.call("sas_mac", a, *ends[0], *ends[1], "txn", 0, "KEY_IDS", "ed25519:A"),
            other.driver.call("sas_mac", b, *ends[1], *ends[0], "txn", 1, "KEY_IDS", "ed25519:A")]
    check(macs[0] == macs[1], "other MACs:", macs)
    return {"verified": 1}


# ---- a seed --------------------------------------------------------------------------------------------------------------------

TALKS = [(f"olm {one} {other}", talk_olm, (one, other))
         for one, other in (("ours", "libolm"), ("ours", "vodozemac"), ("libolm", "vodozemac"))]
TALKS += [(f"megolm from {one}", talk_megolm, (one, others)) for one, others in (
    ("ours", ("libolm", "vodozemac")), ("libolm", ("ours", "vodozemac")), ("vodozemac", ("ours", "libolm")))]
TALKS += [("sas ours libolm", talk_sas_drivers, ()), ("sas ours vodozemac", talk_sas, ("ours",)),
          ("sas libolm vodozemac", talk_sas, ("libolm",))]
TALKS += [(f"export from {one}", talk_export, (one,)) for one in ("ours", "libolm", "vodozemac")]


def run_seed(seed, drivers, vodozemac, totals):
    """Returns the name of the conversation that failed, or None."""
    dice = random.Random(seed)
    world = {name: DriverDevice(name, driver) for name, driver in drivers.items()}
    machine = world["vodozemac"] = MachineDevice("vodozemac", vodozemac)
    world["rooms"] = {}
    for name in drivers:
        machine.know(world[name])
    for name, talk, arguments in TALKS:
        try:
            counts = talk(dice, world, *arguments)
        except (AssertionError, Refused) as error:
            print(f"not ok - {name}, seed {seed}: {type(error).__name__}: {error}", flush=True)
            return name
        total = totals[name]
        total["talks"] += 1
        for key, count in counts.items():
            total[key] = total.get(key, 0) + count
    machine.call("close")
    return None


def report(totals, failed):
    """A kind in which something never happened over many seeds has proven nothing."""
    for name, total in totals.items():
        text = ", ".join(f"{count} {key}" for key, count in total.items())
        if name not in failed and total["talks"] >= SEEDS and 0 in [it for key, it in total.items() if key != "early"]:
            failed.add(name)
        print(f"{'not ok' if name in failed else 'ok'} - {name}: {text}")
    print(f"{sum(it['talks'] for it in totals.values())} conversations")
    print(f"{len(totals) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


def processes(seed):
    program = os.path.join(ROOT, os.environ.get("TROUPE_BUILD", "build/debug"), "test/oracle/driver")
    if not os.path.exists(program):
        raise npm.Skip(f"{os.path.relpath(program, ROOT)} is not built: it needs libolm-dev")
    node = npm.install(JS, os.path.join(ROOT, "test/matrix"), [os.path.join(HERE, "vodozemac.mjs")])
    drivers = {name: Driver([program, name, str(seed + place)]) for place, name in enumerate(("ours", "libolm"))}
    return drivers, Vodozemac([node, os.path.join(JS, "vodozemac.mjs"), str(seed + 2)], JS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=None, help="this one alone")
    parser.add_argument("--seeds", type=int, default=SEEDS_LONG if LONG else SEEDS)
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(1, options.seeds + 1)
    totals, failed = {name: {"talks": 0} for name, _, _ in TALKS}, set()
    for seed in seeds:
        try:
            drivers, vodozemac = processes(1000 * seed)
        except npm.Skip as reason:
            print(reason)
            return 77
        failed |= {run_seed(seed, drivers, vodozemac, totals)} - {None}
        for process in (*drivers.values(), vodozemac):
            process.stop()
    return report(totals, failed)


if __name__ == "__main__":
    sys.exit(main())
