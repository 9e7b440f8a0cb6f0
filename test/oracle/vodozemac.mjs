// SPDX-License-Identifier: Apache-2.0
// vodozemac behind a pipe, for vodozemac.py: machines of matrix-sdk-crypto-wasm without a server. A line is a call,
// {"do": NAME, "machine": NUMBER, ...}; the answer is a line with its result, or {"error": TEXT, "code": NUMBER}.
import { createInterface } from "node:readline";

// Everything random comes from the seed, so that a seed repeats a conversation.
let state = BigInt(process.argv[2] ?? 1);
const word = () => { // splitmix64
  state = BigInt.asUintN(64, state + 0x9e3779b97f4a7c15n);
  let bits = state;
  bits = BigInt.asUintN(64, (bits ^ (bits >> 30n)) * 0xbf58476d1ce4e5b9n);
  bits = BigInt.asUintN(64, (bits ^ (bits >> 27n)) * 0x94d049bb133111ebn);
  return bits ^ (bits >> 31n);
};
const getRandomValues = (array) => {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = Number(word() & 0xffn);
  return array;
};
Object.defineProperty(globalThis, "crypto", { value: { getRandomValues }, configurable: true });

const wasm = await import("@matrix-org/matrix-sdk-crypto-wasm");
await wasm.initAsync();
const { DeviceId, OlmMachine, RequestType, RoomId, UserId } = wasm;

const SETTINGS = new wasm.DecryptionSettings(wasm.TrustRequirement.Untrusted);
const worlds = []; // { machine, devices: {USER: {DEVICE: keys}}, oneTime: {USER: {DEVICE: {ID: key}}}, own }

const toDevice = (request) => ({ type: request.event_type, messages: JSON.parse(request.body).messages });

// Answers what the machine asks a server for, as the script has told; returns its messages to devices.
async function flush(world) {
  const sent = [];
  for (const request of await world.machine.outgoingRequests()) {
    let answer = {};
    if (request.type === RequestType.KeysUpload) {
      world.own.push(JSON.parse(request.body));
      answer = { one_time_key_counts: { signed_curve25519: 50 } };
    } else if (request.type === RequestType.KeysQuery) answer = { device_keys: world.devices, failures: {} };
    else if (request.type === RequestType.KeysClaim) answer = { one_time_keys: world.oneTime, failures: {} };
    else if (request.type === RequestType.ToDevice) sent.push(toDevice(request));
    await world.machine.markRequestAsSent(request.id, request.type, JSON.stringify(answer));
  }
  return sent;
}

const requests = (list) => [list].flat().filter((it) => it instanceof wasm.ToDeviceRequest).map(toDevice);
const sasOf = ({ machine }, { user, transaction }) => machine.getVerification(new UserId(user), transaction);

const calls = {
  async open(_, { user, device }) {
    const machine = await OlmMachine.initialize(new UserId(user), new DeviceId(device));
    const world = { machine, devices: {}, oneTime: {}, own: [] };
    worlds.push(world);
    await flush(world);
    return { machine: worlds.length - 1, uploads: world.own };
  },
  async close(world) {
    world.machine.close();
  },
  // The devices of another user, and one-time keys to claim.
  async know(world, { user, devices, oneTime }) {
    world.devices[user] = devices;
    world.oneTime[user] = oneTime;
    await world.machine.updateTrackedUsers([new UserId(user)]);
    await flush(world);
  },
  async claim(world, { user }) {
    const request = await world.machine.getMissingSessions([new UserId(user)]);
    if (!request) return { claimed: false };
    await world.machine.markRequestAsSent(
      request.id, request.type, JSON.stringify({ one_time_keys: { [user]: world.oneTime[user] }, failures: {} }));
    return { claimed: true };
  },
  async encrypt(world, { user, device, text }) {
    const to = await world.machine.getDevice(new UserId(user), new DeviceId(device));
    return { content: JSON.parse(await to.encryptToDeviceEvent("org.troupe.test", { text })) };
  },
  async receive(world, { events }) {
    const counts = new Map([["signed_curve25519", 50]]);
    const taken = await world.machine.receiveSyncChanges(
      JSON.stringify(events), new wasm.DeviceLists(), counts, new Set(["signed_curve25519"]));
    return { events: JSON.parse(taken), sent: await flush(world) };
  },
  // ---- megolm
  async share(world, { room, users }) {
    const settings = new wasm.EncryptionSettings();
    settings.sharingStrategy = wasm.CollectStrategy.allDevices();
    settings.rotationPeriodMessages = 10000n;
    const list = await world.machine.shareRoomKey(new RoomId(room), users.map((it) => new UserId(it)), settings);
    for (const request of list) await world.machine.markRequestAsSent(request.id, request.type, "{}");
    return { sent: list.map(toDevice) };
  },
  async encrypt_room(world, { room, text }) {
    const content = await world.machine.encryptRoomEvent(new RoomId(room), "org.troupe.test", JSON.stringify({ text }));
    return { content: JSON.parse(content) };
  },
  async decrypt_room(world, { room, event }) {
    const taken = await world.machine.decryptRoomEvent(JSON.stringify(event), new RoomId(room), SETTINGS);
    return { event: JSON.parse(taken.event) };
  },
  async export(world) {
    return { sessions: JSON.parse(await world.machine.exportRoomKeys(() => true)) };
  },
  async import(world, { sessions }) {
    const result = await world.machine.importExportedRoomKeys(JSON.stringify(sessions), () => {});
    return { count: result.importedCount };
  },
  async seal_file(_, { text, passphrase, rounds }) {
    return { file: OlmMachine.encryptExportedRoomKeys(text, passphrase, rounds) };
  },
  async open_file(_, { file, passphrase }) {
    return { text: OlmMachine.decryptExportedRoomKeys(file, passphrase) };
  },
  // ---- sas
  async request(world, { user, device }) {
    const to = await world.machine.getDevice(new UserId(user), new DeviceId(device));
    const [request, message] = to.requestVerification([wasm.VerificationMethod.SasV1]);
    return { transaction: request.flowId, sent: requests(message) };
  },
  async ready(world, { user, transaction }) {
    const request = world.machine.getVerificationRequest(new UserId(user), transaction);
    return { sent: requests(request.acceptWithMethods([wasm.VerificationMethod.SasV1])) };
  },
  async start(world, { user, transaction }) {
    const request = world.machine.getVerificationRequest(new UserId(user), transaction);
    const [, message] = await request.startSas();
    return { sent: requests(message) };
  },
  async accept(world, about) {
    return { sent: requests(sasOf(world, about).accept()) };
  },
  async confirm(world, about) {
    const sent = requests(await sasOf(world, about).confirm());
    return { sent: [...sent, ...(await flush(world))] };
  },
  async mismatch(world, about) {
    return { sent: requests(sasOf(world, about).cancelWithCode("m.mismatched_sas")) };
  },
  async sas(world, about) {
    const sas = sasOf(world, about);
    return {
      decimals: [...(sas.decimals() ?? [])], emoji: [...(sas.emojiIndex() ?? [])],
      done: sas.isDone(), cancelled: sas.cancelInfo()?.cancelCode() ?? null,
    };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, machine, ...values } = JSON.parse(line);
  let answer;
  try {
    answer = (await calls[name](worlds[machine], values)) ?? {};
  } catch (error) {
    answer = { error: String(error?.description ?? error?.message ?? error), code: error?.code ?? -1 };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
