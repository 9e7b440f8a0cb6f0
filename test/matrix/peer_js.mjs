// SPDX-License-Identifier: Apache-2.0
// A Matrix client on matrix-js-sdk (vodozemac), driven by JSON lines; test/README.md has the commands and events.
import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";

const log = process.env.PEER_LOG ? console.error : () => {}; // standard output is the protocol's
for (const name of ["log", "info", "debug", "trace"]) console[name] = log;
const { ClientEvent, createClient, Filter, MatrixEventEvent, RoomEvent, RoomMemberEvent } = await import("matrix-js-sdk");
const { CryptoEvent, VerificationPhase, VerifierEvent } = await import("matrix-js-sdk/lib/crypto-api/index.js");
const { RustSASVerifier } = await import("matrix-js-sdk/lib/rust-crypto/verification.js");
const wasm = await import("@matrix-org/matrix-sdk-crypto-wasm");

const SAS = "m.sas.v1";
const TIMELINE = 100; // events of a sync; neither peer fetches what a shorter timeline leaves out
let client;
let crypto;
let aheadMs = 0; // of the clock that the SDK sees
const realNow = Date.now;
Date.now = () => realNow() + aheadMs;
const flows = new Map(); // transaction id: { request?, verifier?, sas?, isOurs, isOver }

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
const once = (emitter, name) => new Promise((resolve) => emitter.once(name, resolve));

// ---- rooms --------------------------------------------------------------------------------------------------------

async function untilEncrypted(roomId) { // before it has seen m.room.encryption the SDK would send plaintext
  while (!(await crypto.isEncryptionEnabledInRoom(roomId))) await once(client, ClientEvent.Sync);
}

function sayMessage(event) {
  if (event.getUnsigned().transaction_id) return; // this very device has sent it
  const about = { roomId: event.getRoomId(), eventId: event.getId(), sender: event.getSender() };
  if (event.isDecryptionFailure()) say({ event: "undecryptable", ...about, code: event.decryptionFailureReason });
  else if (event.getType() === "m.room.message") {
    say({ event: "message", ...about, encrypted: event.isEncrypted(), content: event.getContent() });
  }
}

function listen() {
  client.on(RoomEvent.Timeline, (event, room, isOld) => {
    if (!isOld && event.status === null && !event.isEncrypted()) sayMessage(event);
  });
  client.on(MatrixEventEvent.Decrypted, (event) => sayMessage(event));
  client.on(RoomMemberEvent.Membership, (event, member) =>
    say({ event: "member", roomId: member.roomId, userId: member.userId, membership: member.membership }));
  client.on(CryptoEvent.VerificationRequestReceived, (request) => followRequest(request, false));
  client.on(ClientEvent.ToDeviceEvent, (event) => {
    if (event.getType() === "m.key.verification.start") followLegacyStart(event.getSender(), event.getContent());
  });
  client.on("Session.logged_out", (error) => say({ event: "logged_out", soft: error.data?.soft_logout ?? false }));
}

// ---- verification -------------------------------------------------------------------------------------------------

const flowOf = (transactionId) => {
  const flow = flows.get(transactionId);
  if (!flow) throw Error(`there is no verification ${transactionId}`);
  return flow;
};

function followRequest(request, isOurs) {
  const about = { transactionId: request.transactionId, userId: request.otherUserId, deviceId: request.otherDeviceId };
  const flow = { request, isOurs };
  flows.set(request.transactionId, flow);
  const look = async () => {
    if (request.phase === VerificationPhase.Cancelled) {
      sayOver(flow, { event: "cancelled", ...about, code: request.cancellationCode });
    } else if (request.phase === VerificationPhase.Ready && flow.isOurs && !flow.isStarted) {
      flow.isStarted = true;
      followVerifier(flow, await request.startVerification(SAS), about);
    } else if (request.verifier && !flow.verifier) followVerifier(flow, request.verifier, about);
  };
  request.on("change", look);
  if (!isOurs) say({ event: "verification_request", ...about, legacy: false });
}

// A peer that knows no requests, as matrix-nio, begins with `start`. The SDK takes it and tells nobody.
function followLegacyStart(userId, content) {
  const transactionId = content.transaction_id;
  if (flows.has(transactionId)) return;
  const sas = crypto.olmMachine.getVerification(new wasm.UserId(userId), transactionId);
  if (!sas) return;
  const verifier = new RustSASVerifier(sas, undefined, crypto.outgoingRequestProcessor);
  const about = { transactionId, userId, deviceId: content.from_device };
  flows.set(transactionId, { isOurs: false, begin: () => followVerifier(flowOf(transactionId), verifier, about) });
  say({ event: "verification_request", ...about, legacy: true });
}

function followVerifier(flow, verifier, about) {
  flow.verifier = verifier;
  const show = (sas) => {
    flow.sas = sas;
    say({ event: "sas", ...about, decimals: sas.sas.decimal, emoji: [...verifier.inner.emojiIndex()] });
  };
  verifier.on(VerifierEvent.ShowSas, show);
  if (verifier.getShowSasCallbacks()) show(verifier.getShowSasCallbacks());
  verifier.verify().then(
    () => sayOver(flow, { event: "verified", ...about }),
    () => sayOver(flow, { event: "cancelled", ...about, code: verifier.inner.cancelInfo()?.cancelCode() }));
}

function sayOver(flow, line) {
  if (!flow.isOver) say(line);
  flow.isOver = true;
}

// ---- commands -----------------------------------------------------------------------------------------------------

const commands = {
  async login({ homeserver, user, password, deviceId, refresh = false }) {
    const login = await createClient({ baseUrl: homeserver }).loginRequest({
      type: "m.login.password", identifier: { type: "m.id.user", user }, password,
      device_id: deviceId, refresh_token: refresh,
    });
    client = createClient({
      baseUrl: homeserver, userId: login.user_id, deviceId: login.device_id, accessToken: login.access_token,
      refreshToken: login.refresh_token, verificationMethods: [SAS],
      tokenRefreshFunction: refresh && (async (token) => {
        const fresh = await createClient({ baseUrl: homeserver }).refreshToken(token);
        say({ event: "refreshed" });
        return { accessToken: fresh.access_token, refreshToken: fresh.refresh_token };
      }),
    });
    await client.initRustCrypto({ useIndexedDB: false });
    crypto = client.getCrypto();
    listen();
    const filter = new Filter(login.user_id);
    filter.setTimelineLimit(TIMELINE);
    await client.startClient({ initialSyncLimit: TIMELINE, filter });
    while (!client.isInitialSyncComplete()) await once(client, ClientEvent.Sync);
    await crypto.outgoingRequestsManager.doProcessOutgoingRequests(); // its keys are on the server when this is answered
    const keys = await crypto.getOwnDeviceKeys();
    return { userId: login.user_id, deviceId: login.device_id, ...keys };
  },
  async create_room({ name, invite = [], encrypted = true }) {
    const state = { type: "m.room.encryption", state_key: "", content: { algorithm: "m.megolm.v1.aes-sha2" } };
    const { room_id: roomId } = await client.createRoom({
      preset: "private_chat", name, invite, initial_state: encrypted ? [state] : [],
    });
    if (encrypted) await untilEncrypted(roomId);
    return { roomId };
  },
  invite: ({ roomId, userId }) => client.invite(roomId, userId),
  kick: ({ roomId, userId }) => client.kick(roomId, userId),
  leave: ({ roomId }) => client.leave(roomId),
  async join({ roomId, encrypted = true }) {
    await client.joinRoom(roomId);
    if (encrypted) await untilEncrypted(roomId);
  },
  async send({ roomId, text, content }) {
    const sent = await client.sendMessage(roomId, content ?? { msgtype: "m.text", body: text });
    return { eventId: sent.event_id };
  },
  async attach({ roomId, path, name }) {
    const bytes = await readFile(path);
    const locked = wasm.Attachment.encrypt(new Uint8Array(bytes));
    const { content_uri: url } = await client.uploadContent(new Blob([locked.encryptedData]), {
      type: "application/octet-stream", includeFilename: false,
    });
    const file = { ...JSON.parse(locked.mediaEncryptionInfo), url };
    const info = { size: bytes.length, mimetype: "application/octet-stream" };
    const sent = await client.sendMessage(roomId, { msgtype: "m.file", body: name, info, file });
    return { eventId: sent.event_id, sha256: sha256(bytes) };
  },
  async download({ content, path }) {
    const url = client.mxcUrlToHttp(content.file.url, undefined, undefined, undefined, false, true, true);
    const answer = await fetch(url, { headers: { Authorization: `Bearer ${client.getAccessToken()}` } });
    if (!answer.ok) throw Error(`${url}: ${answer.status} ${await answer.text()}`);
    const locked = new Uint8Array(await answer.arrayBuffer());
    const bytes = wasm.Attachment.decrypt(new wasm.EncryptedAttachment(locked, JSON.stringify(content.file)));
    if (path) await writeFile(path, bytes);
    return { size: bytes.length, sha256: sha256(bytes) };
  },
  async devices({ userId }) {
    const found = (await crypto.getUserDeviceInfo([userId], true)).get(userId) ?? new Map();
    const list = [...found.values()].map(async (device) => ({
      deviceId: device.deviceId, ed25519: device.getFingerprint(), curve25519: device.getIdentityKey(),
      verified: (await crypto.getDeviceVerificationStatus(userId, device.deviceId))?.localVerified ?? false,
    }));
    return { devices: await Promise.all(list) };
  },
  async cross_sign({ password }) {
    const user = client.getUserId();
    await crypto.bootstrapCrossSigning({
      setupNewCrossSigning: true,
      authUploadDeviceSigningKeys: (upload) =>
        upload({ type: "m.login.password", identifier: { type: "m.id.user", user }, password }),
    });
  },
  rotate: ({ roomId }) => crypto.forceDiscardSession(roomId),
  async pass_time({ ms }) {
    aheadMs += ms;
  },
  async trust({ onlyVerified }) {
    crypto.globalBlacklistUnverifiedDevices = onlyVerified;
  },
  async verify({ userId, deviceId }) {
    await crypto.getUserDeviceInfo([userId], true);
    const request = await crypto.requestDeviceVerification(userId, deviceId);
    followRequest(request, true);
    return { transactionId: request.transactionId };
  },
  async accept({ transactionId, start = false }) {
    const flow = flowOf(transactionId);
    if (flow.begin) return flow.begin();
    flow.isOurs = start;
    await flow.request.accept();
  },
  confirm: ({ transactionId }) => flowOf(transactionId).sas.confirm(),
  async mismatch({ transactionId }) {
    flowOf(transactionId).sas.mismatch();
  },
  async cancel({ transactionId }) {
    const flow = flowOf(transactionId);
    await (flow.request ?? flow.verifier).cancel();
  },
  async logout() {
    await client.logout(true);
  },
  async stop() {
    client?.stopClient();
  },
};

async function run({ id, do: name, ...values }) {
  try {
    if (!Object.hasOwn(commands, name)) throw Error(`there is no command ${name}`);
    say({ id, ok: true, ...(await commands[name](values)) });
  } catch (error) {
    say({ id, ok: false, error: String(error?.message ?? error) });
  }
  if (name === "stop") process.exit(0);
}

const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => run(JSON.parse(line)));
lines.on("close", () => process.exit(0));
say({ event: "ready" });
