// SPDX-License-Identifier: Apache-2.0
// talk.mjs [URL]: Alice and Bob talk through a running `troupe serve --dev`. Both are real MLS clients (RFC 9420, by
// ts-mls); the server carries what they say and cannot read it. Read it from the bottom: main() is the story.
import { createPublicKey, generateKeyPairSync, randomUUID, sign, webcrypto } from "node:crypto";
import {
  acceptAll, createApplicationMessage, createCommit, createGroup, createGroupInfoWithExternalPubAndRatchetTree, decodeMlsMessage,
  defaultCapabilities, emptyPskIndex, encodeMlsMessage, generateKeyPackage, getCiphersuiteFromName, getCiphersuiteImpl,
  joinGroup, processMessage,
} from "ts-mls";
import { decodeKeyPackage } from "ts-mls/keyPackage.js";

globalThis.crypto ??= webcrypto; // Node 18 has it, but not under this name

const url = (process.argv[2] ?? "http://127.0.0.1:8080").replace(/\/$/, "");
const SUITE = "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519";
const suite = await getCiphersuiteImpl(getCiphersuiteFromName(SUITE));
const convoId = "chat-" + randomUUID();

const utf8 = (text) => new TextEncoder().encode(text);
const base64 = (bytes) => Buffer.from(bytes).toString("base64");
const wrap = (wireformat, field, value) => base64(encodeMlsMessage({ version: "mls10", wireformat, [field]: value }));
const unwrap = (text) => decodeMlsMessage(Buffer.from(text, "base64"), 0)[0];

// ---- who asks: a key pair that is its own name (did:key), and a signed token for every call -------------------------

class Identity {
  constructor() {
    this.key = generateKeyPairSync("ec", { namedCurve: "secp256k1" }).privateKey;
    const { x, y } = createPublicKey(this.key).export({ format: "jwk" });
    const point = [2 + (Buffer.from(y, "base64url").at(-1) & 1), ...Buffer.from(x, "base64url")];
    let number = BigInt("0x" + Buffer.from([0xe7, 0x01, ...point]).toString("hex")), text = "";
    for (; number > 0n; number /= 58n)
      text = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"[Number(number % 58n)] + text;
    this.did = "did:key:z" + text;
  }

  token(method) {
    const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
    const now = Math.floor(Date.now() / 1000);
    const content = part({ typ: "JWT", alg: "ES256K" }) + "." + part({ iss: this.did, aud: "did:web:localhost",
      lxm: method, jti: randomUUID(), iat: now, exp: now + 60 });
    for (;;) {
      const signature = sign("sha256", Buffer.from(content), { key: this.key, dsaEncoding: "ieee-p1363" });
      if (signature[32] < 0x7f) // of the two signatures that are right, servers take the one with the smaller half
        return content + "." + signature.toString("base64url");
    }
  }
}

// ---- a person: an identity, and what MLS keeps ------------------------------------------------------------------------

class Person {
  constructor(name) {
    Object.assign(this, { name, identity: new Identity(), read: 0 });
    this.did = this.identity.did;
  }

  async call(name, input, isQuery = false) {
    const method = "blue.catbird.mls." + name;
    const answer = await fetch(`${url}/xrpc/${method}${isQuery ? "?" + new URLSearchParams(input) : ""}`, {
      method: isQuery ? "GET" : "POST",
      headers: { authorization: "Bearer " + this.identity.token(method), "content-type": "application/json" },
      body: isQuery ? undefined : JSON.stringify(input),
    });
    const body = await answer.json();
    if (!answer.ok) throw Error(`${name}: ${answer.status} ${body.error}: ${body.message}`);
    return body;
  }
  get = (name, query) => this.call(name, query, true);

  async makeKeyPackage() {
    const now = BigInt(Math.floor(Date.now() / 1000));
    this.package = await generateKeyPackage({ credentialType: "basic", identity: utf8(this.did) }, defaultCapabilities(),
      { notBefore: now - 3600n, notAfter: now + 30n * 86400n }, [], suite);
    return wrap("mls_key_package", "keyPackage", this.package.publicPackage);
  }

  /** So that others can add us while we are away. */
  async publish() {
    await this.call("publishKeyPackage", { keyPackage: await this.makeKeyPackage(), cipherSuite: SUITE });
  }

  async create() {
    await this.makeKeyPackage();
    this.state = await createGroup(utf8(convoId), this.package.publicPackage, this.package.privatePackage, [], suite);
    await this.call("createConvo", { groupId: convoId, cipherSuite: SUITE, metadata: { name: "A first chat" } });
  }

  async add(other) {
    const { keyPackages } = await this.get("getKeyPackages", { dids: other.did, cipherSuite: SUITE });
    const [keyPackage] = decodeKeyPackage(Buffer.from(keyPackages[0].keyPackage, "base64"), 0);
    const made = await createCommit({ state: this.state, cipherSuite: suite },
      { extraProposals: [{ proposalType: "add", add: { keyPackage } }], ratchetTreeExtension: true });
    const groupInfo = await createGroupInfoWithExternalPubAndRatchetTree(made.newState, [], suite);
    const { newEpoch } = await this.call("submitCommit", { convoId, commit: base64(encodeMlsMessage(made.commit)),
      welcomes: [wrap("mls_welcome", "welcome", made.welcome)], groupInfo: wrap("mls_group_info", "groupInfo", groupInfo) });
    this.state = made.newState; // only now: had another commit won this epoch, ours would be void
    return newEpoch;
  }

  async join() {
    const { welcome } = await this.get("getWelcome", { convoId });
    const { publicPackage, privatePackage } = this.package;
    this.state = await joinGroup(unwrap(welcome).welcome, publicPackage, privatePackage, emptyPskIndex, suite);
    await this.call("confirmWelcome", { convoId, success: true });
  }

  async say(words) {
    const made = await createApplicationMessage(this.state, utf8(words), suite);
    const ciphertext = wrap("mls_private_message", "privateMessage", made.privateMessage);
    this.state = made.newState;
    this.last = randomUUID();
    const { seq } = await this.call("sendMessage", { convoId, msgId: this.last, ciphertext: { $bytes: ciphertext },
      epoch: Number(made.privateMessage.epoch) });
    console.log(`  ${(this.name + " says:").padEnd(12)} ${words}`);
    console.log(`  the server:  message ${seq}, …${ciphertext.slice(-48)}`);
  }

  async listen() {
    const { messages } = await this.get("getMessages", { convoId, sinceSeq: this.read });
    for (const { id, seq, messageType, ciphertext } of messages) {
      this.read = seq;
      if (id === this.last || messageType !== "app") continue; // our own cannot be decrypted, not even by us
      const done = await processMessage(unwrap(ciphertext.$bytes), this.state, emptyPskIndex, acceptAll, suite);
      this.state = done.newState;
      console.log(`  ${(this.name + " reads:").padEnd(12)} ${new TextDecoder().decode(done.message)}\n`);
    }
  }
}

// ---- the story -----------------------------------------------------------------------------------------------------------

async function main() {
  const alice = new Person("alice"), bob = new Person("bob");
  console.log(`alice is ${alice.did}\nbob is   ${bob.did}\n`);
  await bob.publish();
  await alice.create();
  const epoch = await alice.add(bob);
  await bob.join();
  console.log(`Alice made the group ${convoId} and added Bob, who joined by a Welcome. Epoch ${epoch}.\n`);

  await alice.say("Hello Bob!");
  await bob.listen();
  await bob.say("Hello Alice! Can the server read this?");
  await alice.listen();
  await alice.say("It cannot. It knows who we are and when we talk, not what we say.");
  await bob.listen();
  const same = [alice, bob].map((person) => base64(person.state.keySchedule.epochAuthenticator).slice(0, 16));
  console.log(`Both have the same epoch authenticator: ${same.join(" = ")}. Compare it aloud, and nobody is between you.`);
}

await main().catch((error) => {
  if (error.message === "fetch failed") // whatever its cause: nobody there, no such host, a port that fetch does not ask
    console.error(`no server answers on ${url}: start one with \`make run\``);
  else
    console.error(error);
  process.exit(1);
});
