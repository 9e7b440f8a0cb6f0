// SPDX-License-Identifier: Apache-2.0
// service.mjs: one user of the delivery service, as far as HTTP goes: an identity (did:key on secp256k1), a fresh
// token for every call, calls in JSON or message/mls, and the event stream by server-sent events or WebSocket. Knows
// nothing of MLS.
import { createPublicKey, generateKeyPairSync, randomUUID, sign } from "node:crypto";

const ORDER = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n; // of secp256k1
const ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const PREFIX = "blue.catbird.mls.";

export const base64 = (bytes) => Buffer.from(bytes).toString("base64");
export const bytesOf = (value) => Buffer.from(typeof value === "string" ? value : value.$bytes, "base64");

/** One item of DAG-CBOR at bytes[at]: [value, where it ended]. */
function decodeCbor(bytes, at = 0) {
  const major = bytes[at] >> 5, low = bytes[at++] & 31;
  if (major === 7) {
    if (low === 27) return [bytes.readDoubleBE(at), at + 8];
    if (low < 20 || low > 22) throw Error(`CBOR: simple value ${low}`);
    return [[false, true, null][low - 20], at];
  }
  let count = low;
  if (low >= 24) {
    const size = 1 << (low - 24);
    if (size > 8) throw Error(`CBOR: a length of kind ${low}`);
    count = size === 8 ? Number(bytes.readBigUInt64BE(at)) : bytes.readUIntBE(at, size);
    at += size;
  }
  if (major === 0) return [count, at];
  if (major === 1) return [-1 - count, at];
  if (at + count > bytes.length && major < 4) throw Error("CBOR: cut off");
  if (major === 2) return [{ $bytes: base64(bytes.subarray(at, at + count)) }, at + count];
  if (major === 3) return [bytes.toString("utf8", at, at + count), at + count];
  const items = [];
  for (let i = 0; i < (major === 5 ? 2 * count : count); i++) {
    const [item, end] = decodeCbor(bytes, at);
    items.push(item);
    at = end;
  }
  if (major === 4) return [items, at];
  if (major !== 5) throw Error(`CBOR: major type ${major}`);
  return [Object.fromEntries(Array.from({ length: count }, (_, i) => [items[2 * i], items[2 * i + 1]])), at];
}

function base58(bytes) {
  let number = BigInt("0x" + Buffer.from(bytes).toString("hex")), text = "";
  for (; number > 0n; number /= 58n) text = ALPHABET[Number(number % 58n)] + text;
  return text;
}

export class Identity {
  constructor() {
    this.key = generateKeyPairSync("ec", { namedCurve: "secp256k1" }).privateKey;
    const { x, y } = createPublicKey(this.key).export({ format: "jwk" });
    const odd = Buffer.from(y, "base64url").at(-1) & 1;
    // Multicodec e7 01 is secp256k1; what follows is the compressed point.
    this.did = "did:key:z" + base58([0xe7, 0x01, 2 + odd, ...Buffer.from(x, "base64url")]);
  }

  token(method, change = {}) {
    const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
    const now = Math.floor(Date.now() / 1000);
    const content = part({ typ: "JWT", alg: "ES256K" }) + "." + part({ iss: this.did, aud: "did:web:localhost",
      lxm: PREFIX + method, jti: randomUUID(), iat: now, exp: now + 60, ...change });
    const signature = sign("sha256", Buffer.from(content), { key: this.key, dsaEncoding: "ieee-p1363" });
    const s = BigInt("0x" + signature.subarray(32).toString("hex"));
    if (s > ORDER / 2n) // both s and -s verify; servers take the smaller one alone
      Buffer.from((ORDER - s).toString(16).padStart(64, "0"), "hex").copy(signature, 32);
    return content + "." + signature.toString("base64url");
  }
}

/** An answer that was not expected. */
export class Refused extends Error {
  constructor(method, status, body) {
    super(`${method}: ${status} ${body?.error ?? ""} ${body?.message ?? ""}`);
    Object.assign(this, { status, body, label: body?.error });
  }
}

export class Service {
  /** Resolved while the server is up; whoever takes it down puts a promise here. */
  static up = Promise.resolve();

  constructor(url, identity = new Identity()) {
    Object.assign(this, { url: url.replace(/\/$/, ""), identity, did: identity.did });
  }

  /** {status, body}, whatever the status. A full server says 503 and a hasty client 429: both mean "again". So does, when
   * this.isPatient, a connection that breaks: nobody knows whether it was stored, and the same call must find out. */
  async ask(method, { query, body, bytes } = {}) {
    const search = new URLSearchParams(query).toString();
    for (let tries = 0; ; tries++) {
      const attempt = fetch(`${this.url}/xrpc/${PREFIX}${method}${search && "?" + search}`, {
        method: body || bytes ? "POST" : "GET",
        headers: { authorization: "Bearer " + this.identity.token(method),
          ...(body && { "content-type": "application/json" }), ...(bytes && { "content-type": "message/mls" }) },
        body: bytes ?? (body && JSON.stringify(body)),
      }).then(async (answer) => [answer, await answer.text()]);
      const [answer, text] = await (this.isPatient ? attempt.catch(() => []) : attempt);
      if (!answer) {
        if (tries === 300) throw Error(`${method}: nobody answers`);
        await Service.up;
        continue;
      }
      if ((answer.status === 503 || answer.status === 429) && tries < 300) {
        await new Promise((go) => setTimeout(go, 1000 * Number(answer.headers.get("retry-after") ?? 1)));
        continue;
      }
      return { status: answer.status, body: text ? JSON.parse(text) : null };
    }
  }

  async get(method, query) {
    const { status, body } = await this.ask(method, { query });
    if (status !== 200) throw new Refused(method, status, body);
    return body;
  }

  async post(method, content) {
    const { status, body } = await this.ask(method, { body: content });
    if (status !== 200) throw new Refused(method, status, body);
    return body;
  }

  /** A call whose body is MLS messages as they are; what else it says is in the query. */
  async postBytes(method, query, bytes) {
    const { status, body } = await this.ask(method, { query, bytes });
    if (status !== 200) throw new Refused(method, status, body);
    return body;
  }

  /** The same as events(), by WebSocket: DAG-CBOR frames, with a ticket, since a browser can send no header. */
  async* frames(convoId, { cursor, signal, onOpen } = {}) {
    const { ticket, endpoint } = await this.post("getSubscriptionTicket", { convoId });
    const query = new URLSearchParams({ convoId, ticket, ...(cursor !== undefined && { cursor }) });
    const socket = new WebSocket(`${this.url.replace(/^http/, "ws")}${endpoint}?${query}`), waiting = [];
    let wake, ended = false;
    const ring = () => wake?.();
    socket.binaryType = "arraybuffer";
    socket.onopen = () => onOpen?.();
    socket.onmessage = ({ data }) => { waiting.push(Buffer.from(data)); ring(); };
    socket.onclose = () => { ended = true; ring(); };
    socket.onerror = ({ error, message }) => {
      if (!signal?.aborted) waiting.push(error ?? Error(message ?? "WebSocket"));
      ring();
    };
    const close = () => socket.close();
    signal?.addEventListener("abort", () => { ended = true; close(); ring(); });
    try {
      for (;;) {
        while (waiting.length === 0 && !ended) await new Promise((go) => { wake = go; });
        if (waiting.length === 0 || signal?.aborted) return;
        const frame = waiting.shift();
        if (frame instanceof Error) throw frame;
        const [{ op, t }, middle] = decodeCbor(frame), [data, end] = decodeCbor(frame, middle);
        if (op !== 1 || end !== frame.length) throw Error(`a frame with op ${op} and ${frame.length - end} bytes more`);
        yield { id: data.cursor, event: t.slice(1), data };
      }
    } finally {
      close();
    }
  }

  /** Server-sent events {id, event, data} of a conversation, from the cursor on, until the server ends the stream
   * or the signal ends it from here. onOpen is called when the server has answered. */
  async* events(convoId, { cursor, signal, onOpen } = {}) {
    const method = "subscribeConvoEvents";
    const answer = await fetch(`${this.url}/xrpc/${PREFIX}${method}?${new URLSearchParams({ convoId })}`, {
      headers: { authorization: "Bearer " + this.identity.token(method), accept: "text/event-stream",
        ...(cursor !== undefined && { "last-event-id": String(cursor) }) },
      signal,
    });
    if (answer.status !== 200) throw new Refused(method, answer.status, await answer.json().catch(() => null));
    onOpen?.();
    let text = "";
    const decoder = new TextDecoder();
    try {
      for await (const chunk of answer.body) {
        text += decoder.decode(chunk, { stream: true });
        for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
          const event = {};
          for (const line of text.slice(0, end).split("\n")) {
            const [, name, value] = /^(\w*): ?(.*)$/.exec(line) ?? [];
            if (name) event[name] = (event[name] ?? "") + value;
          }
          if (event.data) yield { ...event, data: JSON.parse(event.data) };
        }
      }
    } catch (error) {
      if (!signal?.aborted) throw error;
    }
  }
}
