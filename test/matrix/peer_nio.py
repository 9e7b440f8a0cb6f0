#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A Matrix client on matrix-nio (libolm), driven by JSON lines; test/README.md has the commands and events.

nio verifies by SAS as the specification had it first: it begins with `start`, and has the old MAC alone. Requests, and the
`done` at the end, are added here around its own `start`, `accept`, `key` and `mac`."""
import asyncio
import datetime
import hashlib
import json
import os
import sys
import time
import traceback
import uuid

import aiohttp
import nio
from nio.crypto import Sas
from nio.crypto.attachments import decrypt_attachment, encrypt_attachment
from nio.store import SqliteMemoryStore

MEGOLM = "m.megolm.v1.aes-sha2"
SAS = "m.sas.v1"
KINDS = {"m.key.verification." + kind: kind for kind in ("request", "ready", "done")}
FILTER = {"room": {"timeline": {"limit": 100}}}  # neither peer fetches what a shorter timeline leaves out
CONFIG = nio.AsyncClientConfig(store=SqliteMemoryStore, encryption_enabled=True)


def say(**line):
    print(json.dumps(line), flush=True)


def keep_unknown_events():
    """nio drops events of types it does not know. It gets those of requests as plain ToDeviceEvents."""
    parse = nio.ToDeviceEvent.parse_event

    def parse_event(source):
        if source.get("type") in KINDS:
            return nio.ToDeviceEvent(source, source["sender"])
        return parse(source)
    nio.ToDeviceEvent.parse_event = staticmethod(parse_event)


def checked(response):
    if isinstance(response, nio.ErrorResponse):
        raise RuntimeError(str(response))
    return response


class Client(nio.AsyncClient):
    """The sync loop and a command may both see that keys must be queried. nio raises an error in the one that comes second;
    here it waits for the first and finds nothing left to ask."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.querying = asyncio.Lock()

    async def keys_query(self):
        async with self.querying:
            return await super().keys_query() if self.should_query_keys else nio.KeysQueryResponse({}, {})


class Flow:
    """One verification: who it is with, and how far it is apart from what nio's Sas knows."""

    def __init__(self, transaction_id, user_id, device_id, is_request):
        self.about = {"transactionId": transaction_id, "userId": user_id, "deviceId": device_id}
        self.is_request = is_request
        self.is_accepted = self.is_over = self.starts = self.has_sent_mac = False

    def is_with(self, user_id):
        return self.about["userId"] == user_id


class Peer:
    def __init__(self):
        self.client = self.task = self.synced = None
        self.flows = {}
        self.only_verified = False

    # ---- what the homeserver tells -------------------------------------------------------------------------------

    def listen(self):
        self.synced = asyncio.Condition()
        self.client.add_response_callback(self.on_sync, nio.SyncResponse)
        self.client.add_response_callback(self.on_error, nio.SyncError)
        self.client.add_event_callback(self.on_room_event, nio.Event)
        self.client.add_event_callback(self.on_invite, nio.InviteMemberEvent)
        self.client.add_to_device_callback(self.on_verification, nio.KeyVerificationEvent)
        self.client.add_to_device_callback(self.on_request, nio.ToDeviceEvent)

    async def sync(self):
        """An error in nio, or in a callback, ends the process: its driver must not wait for events that cannot come."""
        try:
            await self.client.sync_forever(timeout=30000, full_state=True, sync_filter=FILTER)
        except Exception:  # pylint: disable=broad-exception-caught  # the process ends with it
            traceback.print_exc()
            os._exit(1)

    async def on_sync(self, _):
        async with self.synced:
            self.synced.notify_all()

    async def on_error(self, error):
        if error.status_code == "M_UNKNOWN_TOKEN":
            say(event="logged_out", soft=bool(error.soft_logout))
            self.task.cancel()

    async def until(self, is_so):
        async with self.synced:
            await self.synced.wait_for(is_so)

    async def on_invite(self, room, event):
        say(event="member", roomId=room.room_id, userId=event.state_key, membership=event.membership)

    async def on_room_event(self, room, event):
        about = {"roomId": room.room_id, "eventId": event.event_id, "sender": event.sender}
        if isinstance(event, nio.RoomMemberEvent):
            say(event="member", roomId=room.room_id, userId=event.state_key, membership=event.membership)
        elif isinstance(event, nio.MegolmEvent):
            say(event="undecryptable", **about, code=event.session_id)
        elif event.source.get("type") == "m.room.message" and "transaction_id" not in event.source.get("unsigned", {}):
            say(event="message", **about, encrypted=event.decrypted, content=event.source["content"])

    # ---- verification --------------------------------------------------------------------------------------------

    async def tell(self, flow, kind, **content):
        content["transaction_id"] = flow.about["transactionId"]
        message = nio.ToDeviceMessage("m.key.verification." + kind, flow.about["userId"], flow.about["deviceId"], content)
        checked(await self.client.to_device(message))

    def flow_of(self, transaction_id):
        if transaction_id not in self.flows:
            raise RuntimeError(f"there is no verification {transaction_id}")
        return self.flows[transaction_id]

    def add_flow(self, transaction_id, user_id, device_id, is_request):
        self.flows[transaction_id] = Flow(transaction_id, user_id, device_id, is_request)
        return self.flows[transaction_id]

    def say_over(self, flow, event, **more):
        if not flow.is_over:
            say(event=event, **flow.about, **more)
        flow.is_over = True

    async def on_request(self, event):
        kind, content = KINDS.get(event.source.get("type")), event.source.get("content", {})
        flow = self.flows.get(content.get("transaction_id"))
        if kind == "request" and SAS in content["methods"] and not flow:
            flow = self.add_flow(content["transaction_id"], event.sender, content["from_device"], True)
            say(event="verification_request", **flow.about, legacy=False)
        elif kind == "ready" and flow and flow.is_with(event.sender):
            flow.about["deviceId"] = content["from_device"]
            await self.start(flow)

    async def start(self, flow):
        """nio's own start, with the transaction id of the request."""
        machine = self.client.olm
        device = self.client.device_store[flow.about["userId"]][flow.about["deviceId"]]
        sas = Sas(machine.user_id, machine.device_id, machine.account.identity_keys["ed25519"], device,
                  flow.about["transactionId"])
        machine.key_verifications[sas.transaction_id] = sas
        checked(await self.client.to_device(sas.start_verification()))

    async def on_verification(self, event):
        """nio has looked at the event. Its answer goes out first: a MAC must not overtake the key before it."""
        await self.client.send_to_device_messages()
        transaction_id = event.transaction_id
        flow, sas = self.flows.get(transaction_id), self.client.key_verifications.get(transaction_id)
        if isinstance(event, nio.KeyVerificationCancel):
            if flow:
                self.say_over(flow, "cancelled", code=event.code)
        elif sas and sas.canceled:
            self.say_over(flow or Flow(transaction_id, event.sender, sas.other_olm_device.id, False), "cancelled",
                          code=sas.cancel_code)
        elif isinstance(event, nio.KeyVerificationStart) and sas:
            if flow and flow.is_accepted:
                checked(await self.client.accept_key_verification(transaction_id))
            elif not flow:
                flow = self.add_flow(transaction_id, event.sender, event.from_device, False)
                say(event="verification_request", **flow.about, legacy=True)
        elif isinstance(event, nio.KeyVerificationKey) and sas:
            emoji = [Sas.emoji.index(pair) for pair in sas.get_emoji()]
            say(event="sas", **flow.about, decimals=list(sas.get_decimals()), emoji=emoji)
        elif isinstance(event, nio.KeyVerificationMac) and sas:
            await self.finish(flow, sas)

    async def finish(self, flow, sas):
        """Verified when both have confirmed: the later of our `confirm` and their MAC ends it. `done` must not overtake a MAC."""
        if sas.verified and flow.has_sent_mac and not flow.is_over:
            self.say_over(flow, "verified")
            if flow.is_request:
                await self.tell(flow, "done")

    # ---- commands ------------------------------------------------------------------------------------------------

    async def login(self, homeserver, user, password, deviceId=None):
        self.client = Client(homeserver, user, device_id=deviceId or uuid.uuid4().hex[:10].upper(), store_path=".",
                             config=CONFIG)
        answer = checked(await self.client.login(password))
        self.listen()
        self.task = asyncio.ensure_future(self.sync())
        await self.until(lambda: self.client.next_batch and self.client.olm.account.shared)
        return {"userId": answer.user_id, "deviceId": answer.device_id, **self.client.olm.account.identity_keys}

    async def create_room(self, name=None, invite=(), encrypted=True):
        state = [{"type": "m.room.encryption", "state_key": "", "content": {"algorithm": MEGOLM}}] if encrypted else []
        answer = checked(await self.client.room_create(name=name, invite=invite, initial_state=state,
                                                       preset=nio.RoomPreset.private_chat))
        await self.until_in_room(answer.room_id, encrypted)
        return {"roomId": answer.room_id}

    async def until_in_room(self, room_id, encrypted):
        await self.until(lambda: room_id in self.client.rooms and self.client.rooms[room_id].encrypted == encrypted)

    async def invite(self, roomId, userId):
        checked(await self.client.room_invite(roomId, userId))

    async def kick(self, roomId, userId):
        checked(await self.client.room_kick(roomId, userId))

    async def leave(self, roomId):
        checked(await self.client.room_leave(roomId))

    async def join(self, roomId, encrypted=True):
        checked(await self.client.join(roomId))
        await self.until_in_room(roomId, encrypted)

    async def send(self, roomId, text=None, content=None):
        checked(await self.client.keys_query())  # or nio encrypts for the devices that it knew before
        answer = checked(await self.client.room_send(roomId, "m.room.message",
                                                     content or {"msgtype": "m.text", "body": text},
                                                     ignore_unverified_devices=not self.only_verified))
        return {"eventId": answer.event_id}

    async def media(self, method, path, data=None):
        """Media by the authenticated paths, which nio does not know."""
        headers = {"Authorization": f"Bearer {self.client.access_token}", "Content-Type": "application/octet-stream"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.request(method, self.client.homeserver + path, data=data) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{path}: {answer.status} {await answer.text()}")
                return await answer.read()

    async def attach(self, roomId, path, name):
        with open(path, "rb") as file:
            data = file.read()
        locked, keys = encrypt_attachment(data)
        url = json.loads(await self.media("POST", "/_matrix/media/v3/upload", locked))["content_uri"]
        content = {"msgtype": "m.file", "body": name, "file": {**keys, "url": url},
                   "info": {"size": len(data), "mimetype": "application/octet-stream"}}
        return {**await self.send(roomId, content=content), "sha256": hashlib.sha256(data).hexdigest()}

    async def download(self, content, path=None):
        file = content["file"]
        locked = await self.media("GET", f"/_matrix/client/v1/media/download/{file['url'][len('mxc://'):]}")
        data = decrypt_attachment(locked, file["key"]["k"], file["hashes"]["sha256"], file["iv"])
        if path:
            with open(path, "wb") as out:
                out.write(data)
        return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    async def devices(self, userId):
        self.client.olm.users_for_key_query.add(userId)
        checked(await self.client.keys_query())
        return {"devices": [{"deviceId": device.id, "ed25519": device.ed25519, "curve25519": device.curve25519,
                             "verified": device.verified}
                            for device in self.client.device_store.active_user_devices(userId)]}

    async def rotate(self, roomId):
        self.client.invalidate_outbound_session(roomId)

    async def pass_time(self, ms):
        """nio looks at the age of Olm sessions alone."""
        for session in self.client.olm.session_store:
            session.creation_time -= datetime.timedelta(milliseconds=ms)

    async def trust(self, onlyVerified):
        self.only_verified = onlyVerified

    async def verify(self, userId, deviceId, legacy=False):
        await self.devices(userId)
        device = self.client.device_store[userId][deviceId]
        if legacy:
            checked(await self.client.start_key_verification(device))
            sas = self.client.get_active_sas(userId, deviceId)
            return {"transactionId": self.add_flow(sas.transaction_id, userId, deviceId, False).about["transactionId"]}
        flow = self.add_flow(uuid.uuid4().hex, userId, deviceId, True)
        await self.tell(flow, "request", from_device=self.client.device_id, methods=[SAS],
                        timestamp=int(time.time() * 1000))
        return {"transactionId": flow.about["transactionId"]}

    async def accept(self, transactionId, start=False):
        flow = self.flow_of(transactionId)
        flow.is_accepted = True
        if not flow.is_request:
            checked(await self.client.accept_key_verification(transactionId))
            return
        await self.devices(flow.about["userId"])  # nio drops a `start` of a device that it does not know
        await self.tell(flow, "ready", from_device=self.client.device_id, methods=[SAS])
        if start:
            await self.start(flow)

    async def confirm(self, transactionId):
        checked(await self.client.confirm_short_auth_string(transactionId))
        self.flow_of(transactionId).has_sent_mac = True
        await self.finish(self.flow_of(transactionId), self.client.key_verifications[transactionId])

    async def mismatch(self, transactionId):
        checked(await self.client.cancel_key_verification(transactionId, reject=True))
        self.say_over(self.flow_of(transactionId), "cancelled", code="m.mismatched_sas")

    async def cancel(self, transactionId):
        flow = self.flow_of(transactionId)
        if transactionId in self.client.key_verifications:
            checked(await self.client.cancel_key_verification(transactionId))
        else:
            await self.tell(flow, "cancel", code="m.user", reason="The user cancelled")
        self.say_over(flow, "cancelled", code="m.user")

    async def logout(self):
        self.task.cancel()
        checked(await self.client.logout())

    async def stop(self):
        if self.client:
            self.task.cancel()
            await self.client.close()


COMMANDS = ("login", "create_room", "invite", "kick", "leave", "join", "send", "attach", "download", "devices", "rotate",
            "pass_time", "trust", "verify", "accept", "confirm", "mismatch", "cancel", "logout", "stop")


async def run(peer, command):
    number, name = command.pop("id"), command.pop("do")
    try:
        if name not in COMMANDS:
            raise RuntimeError(f"there is no command {name}")
        answer = await getattr(peer, name)(**command)
        say(id=number, ok=True, **(answer or {}))
    except Exception as error:  # pylint: disable=broad-exception-caught  # it is the answer
        say(id=number, ok=False, error=f"{type(error).__name__}: {error}")


async def main():
    keep_unknown_events()
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    peer, tasks = Peer(), set()
    say(event="ready")
    while line := await reader.readline():
        command = json.loads(line)
        is_last = command["do"] == "stop"
        task = asyncio.ensure_future(run(peer, command))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if is_last:
            await task
            return
    await peer.stop()


if __name__ == "__main__":
    asyncio.run(main())
