// SPDX-License-Identifier: Apache-2.0
// member.mjs: MLS clients of two implementations behind one face: TsMember (ts-mls) and OpenMember (OpenMLS, by mls-ts).
// A member is one client in one conversation. It never moves to a new epoch before the server has taken its commit.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import {
  acceptAll, createApplicationMessage, createCommit, createGroup, createGroupInfoWithExternalPubAndRatchetTree,
  createProposal, decodeMlsMessage, defaultCapabilities, emptyPskIndex, encodeMlsMessage, generateKeyPackage,
  getCiphersuiteFromName, getCiphersuiteImpl, joinGroup, joinGroupExternal, mlsExporter, processMessage,
} from "ts-mls";
import { defaultClientConfig } from "ts-mls/clientConfig.js";
import { decodeKeyPackage } from "ts-mls/keyPackage.js";
import { decodeRatchetTree } from "ts-mls/ratchetTree.js";
import { MlsClient } from "mls-ts";
import { Refused, Service, base64, bytesOf } from "./service.mjs";

export const SUITE = "MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519"; // the one both implementations have
const suite = await getCiphersuiteImpl(getCiphersuiteFromName(SUITE));
const utf8 = (text) => new TextEncoder().encode(text);
const text = (bytes) => new TextDecoder().decode(bytes);
const wrap = (wireformat, field, value) => encodeMlsMessage({ version: "mls10", wireformat, [field]: value });
const open = (bytes) => decodeMlsMessage(bytes, 0)[0];
/** A client that races is many epochs behind before it reads its messages. */
const config = { ...defaultClientConfig,
  keyRetentionConfig: { ...defaultClientConfig.keyRetentionConfig, retainKeysForEpochs: 256 } };
const treeOf = (groupInfo) => groupInfo.extensions.find((e) => e.extensionType === "ratchet_tree").extensionData;

/** What both kinds share: everything that needs no MLS. */
class Member {
  constructor(url, convoId, name, service = new Service(url)) {
    Object.assign(this, { url, convoId, name, service, did: service.did, cursor: 0, sent: new Set(), heard: [],
      conflicts: 0, removed: false });
  }

  async publish(count = 1) {
    const keyPackages = [];
    for (let i = 0; i < count; i++)
      keyPackages.push({ keyPackage: base64(await this.makeKeyPackage()), cipherSuite: SUITE });
    const answer = await this.service.post("publishKeyPackages", { keyPackages });
    assert.deepEqual([answer.succeeded, answer.failed], [count, 0], JSON.stringify(answer.errors));
  }

  /** One key package of each, leased to this member: bare, in whichever form it was published. */
  async claim(others) {
    const query = [["cipherSuite", SUITE], ...others.map((other) => ["dids", other.did])];
    const { keyPackages, missing } = await this.service.get("getKeyPackages", query);
    assert.deepEqual(missing, []);
    return keyPackages.map((entry) => bytesOf(entry.keyPackage));
  }

  /** Every other call goes as message/mls, the rest as JSON: both mean the same. */
  isRaw() { return (this.calls = (this.calls ?? 0) + 1) % 2 === 0; }

  /** What stage() made, in one of the two forms. */
  askToCommit({ commit, welcome, groupInfo, proposals = [], appMessage, removes }) {
    if (this.isRaw())
      return this.service.ask("submitCommit", { query: { convoId: this.convoId, ...(removes && { removes: removes.join(",") }) },
        bytes: Buffer.concat([...proposals, commit, welcome, groupInfo, appMessage].filter(Boolean)) });
    return this.service.ask("submitCommit", { body: {
      convoId: this.convoId, commit: base64(commit), welcomes: welcome ? [base64(welcome)] : [],
      ...(groupInfo && { groupInfo: base64(groupInfo) }), ...(removes && { removes }),
      ...(proposals.length > 0 && { proposals: proposals.map(base64) }), ...(appMessage && { appMessage: base64(appMessage) }),
    } });
  }

  /** Submit what stage() made. True: it won. False: another commit did, and what the answer brought has been applied. */
  async submit(staged) {
    const { status, body } = await this.askToCommit(staged);
    if (status === 200) {
      await this.adopt(staged);
      assert.equal(BigInt(body.newEpoch), this.epoch, "the server and the committer count alike");
      return true;
    }
    if (status !== 409 || body.error !== "EpochConflict") throw new Refused("submitCommit", status, body);
    this.conflicts++;
    await this.discard(staged);
    await this.rebase(body);
    return false;
  }

  /** One round trip: the 409 has every commit that is missing. */
  async rebase(conflict) {
    for (const commit of conflict.commits) await this.apply(commit.baseEpoch, bytesOf(commit.commitData));
    assert.equal(this.epoch, BigInt(conflict.currentEpoch), "the commits of the 409 lead to the current epoch");
  }

  async apply(baseEpoch, bytes) {
    if (BigInt(baseEpoch) < this.epoch) return; // our own, or seen in a 409
    assert.equal(BigInt(baseEpoch), this.epoch, "no commit is missing");
    await this.process(bytes);
  }

  /** One entry of the log, from getMessages or the stream. */
  async take(message) {
    const bytes = bytesOf(message.ciphertext);
    if (message.messageType === "commit") await this.apply(message.baseEpoch, bytes);
    else if (["app", "proposal"].includes(message.messageType) && !this.sent.has(message.id) &&
        !this.sent.has(base64(bytes)) && this.isForUs(bytes))
      await this.process(bytes);
    if (message.seq) this.cursor = message.seq;
  }

  /** Read the log from where we are; the texts that were new. */
  async sync() {
    const before = this.heard.length;
    for (;;) {
      const page = await this.service.get("getMessages", { convoId: this.convoId, sinceSeq: this.cursor, limit: 100 });
      for (const message of page.messages) await this.take(message);
      if (!page.hasMore && page.messages.length < 100) return this.heard.slice(before);
    }
  }

  /** What was encrypted in an epoch before ours is for others; and in our own epoch 0 there is nothing. */
  isForUs(bytes) {
    const { privateMessage, publicMessage } = open(bytes);
    return (privateMessage?.epoch ?? publicMessage.content.epoch) >= this.firstEpoch;
  }

  async say(words) {
    const msgId = randomUUID(), ciphertext = await this.encrypt(words);
    this.sent.add(msgId);
    const about = { convoId: this.convoId, msgId, epoch: Number(open(ciphertext).privateMessage.epoch),
      paddedSize: ciphertext.length };
    if (this.isRaw()) return this.service.postBytes("sendMessage", about, ciphertext);
    return this.service.post("sendMessage", { ...about, ciphertext: { $bytes: base64(ciphertext) } });
  }

  async groupInfo() {
    const { groupInfo, epoch } = await this.service.get("getGroupInfo", { convoId: this.convoId });
    return { groupInfo: open(bytesOf(groupInfo)).groupInfo, epoch };
  }

  async join() {
    const { welcome } = await this.service.get("getWelcome", { convoId: this.convoId });
    const { groupInfo } = await this.groupInfo();
    await this.joinWith(bytesOf(welcome), treeOf(groupInfo), groupInfo);
    await this.service.post("confirmWelcome", { convoId: this.convoId, success: true });
    return this;
  }
}

export class TsMember extends Member {
  packages = [];

  get epoch() { return this.state.groupContext.epoch; }
  authenticator() { return Buffer.from(this.state.keySchedule.epochAuthenticator).toString("hex"); }
  async exported() {
    return Buffer.from(await mlsExporter(this.state.keySchedule.exporterSecret, "same", utf8(""), 32, suite)).toString("hex");
  }
  /** The leaf a member has in the tree. */
  leafOf(other) {
    const at = this.state.ratchetTree.findIndex((node) => node?.nodeType === "leaf" &&
      text(node.leaf.credential.identity) === other.did);
    assert(at >= 0, `${other.name} is in the tree`);
    return at / 2;
  }

  async makeKeyPackage() {
    const now = BigInt(Math.floor(Date.now() / 1000)); // the library's default lifetime is endless, which servers refuse
    const made = await generateKeyPackage({ credentialType: "basic", identity: utf8(this.did) }, defaultCapabilities(),
      { notBefore: now - 3600n, notAfter: now + 30n * 86400n }, [], suite);
    this.packages.push(made);
    return wrap("mls_key_package", "keyPackage", made.publicPackage);
  }

  /** A new MLS group; its id is the conversation's, or another after a reset. */
  async begin(groupId = this.convoId) {
    await this.makeKeyPackage();
    const { publicPackage, privatePackage } = this.packages.pop();
    this.state = await createGroup(utf8(groupId), publicPackage, privatePackage, [], suite, config);
    this.firstEpoch = 0n;
  }
  async create(initialMembers = []) {
    await this.begin();
    return this.service.post("createConvo", { groupId: this.convoId, cipherSuite: SUITE,
      initialMembers: initialMembers.map((member) => member.did), groupInfo: base64(await this.makeGroupInfo()) });
  }

  async makeGroupInfo(state = this.state) {
    return wrap("mls_group_info", "groupInfo", await createGroupInfoWithExternalPubAndRatchetTree(state, [], suite));
  }

  async stage(extraProposals = [], { wireAsPublicMessage = process.env.PUBLIC === "1" } = {}) {
    const made = await createCommit({ state: this.state, cipherSuite: suite },
      { extraProposals, ratchetTreeExtension: true, wireAsPublicMessage });
    return { next: made.newState, commit: encodeMlsMessage(made.commit), groupInfo: await this.makeGroupInfo(made.newState),
      welcome: made.welcome && wrap("mls_welcome", "welcome", made.welcome) };
  }
  adopt(staged) { this.state = staged.next; }
  discard() {}

  async stageAdd(others) {
    const packages = await this.claim(others);
    return this.stage(packages.map((bytes) => ({ proposalType: "add", add: { keyPackage: decodeKeyPackage(bytes, 0)[0] } })));
  }
  async stageRemove(others) {
    const staged = await this.stage(others.map((other) => ({ proposalType: "remove", remove: { removed: this.leafOf(other) } })));
    return { ...staged, removes: others.map((other) => other.did) };
  }
  /** A public proposal that comes alone; `forge` may change it after it was signed. */
  async proposeRemoval(other, forge = () => {}) {
    const made = await createProposal(this.state, true, { proposalType: "remove", remove: { removed: this.leafOf(other) } }, suite);
    const message = structuredClone(made.message), msgId = randomUUID();
    forge(message.publicMessage);
    await this.service.post("sendProposal", { convoId: this.convoId, msgId, proposal: base64(encodeMlsMessage(message)) });
    this.sent.add(msgId);
    this.state = made.newState;
  }
  async add(...others) { assert(await this.submit(await this.stageAdd(others))); }
  async remove(...others) { assert(await this.submit(await this.stageRemove(others))); }

  async joinWith(welcome, tree) {
    let failure;
    for (const { publicPackage, privatePackage } of this.packages) { // whichever it was made for
      try {
        this.state = await joinGroup(open(welcome).welcome, publicPackage, privatePackage, emptyPskIndex, suite,
          decodeRatchetTree(tree, 0)[0] /* some Welcomes have no tree inside */, undefined, config);
        this.firstEpoch = this.epoch;
        return;
      } catch (error) { failure = error; }
    }
    throw failure;
  }

  /** Join by the stored GroupInfo; `resync` replaces our own leaf. */
  async stageExternal(resync) {
    if (this.packages.length === 0) await this.makeKeyPackage();
    const { groupInfo } = await this.groupInfo();
    const { publicPackage, privatePackage } = this.packages[0];
    const made = await joinGroupExternal(groupInfo, publicPackage, privatePackage, resync, suite, undefined, config);
    return { next: made.newState, groupInfo: await this.makeGroupInfo(made.newState),
      commit: wrap("mls_public_message", "publicMessage", made.publicMessage) };
  }
  async joinExternally(resync = false) {
    const staged = await this.stageExternal(resync);
    const answer = await this.service.post("processExternalCommit", { convoId: this.convoId,
      externalCommit: base64(staged.commit), groupInfo: base64(staged.groupInfo) });
    this.state = staged.next;
    this.firstEpoch = this.epoch;
    assert.equal(BigInt(answer.epoch), this.epoch);
    return answer;
  }

  async process(bytes) {
    const done = await processMessage(open(bytes), this.state, emptyPskIndex, acceptAll, suite);
    this.state = done.newState;
    this.removed = this.state.groupActiveState.kind === "removedFromGroup";
    if (done.kind === "applicationMessage") this.heard.push(text(done.message));
  }

  async encrypt(words) {
    const made = await createApplicationMessage(this.state, utf8(words), suite);
    this.state = made.newState;
    return wrap("mls_private_message", "privateMessage", made.privateMessage);
  }

  /** For joiners, after a commit of a member who cannot make a GroupInfo. */
  async updateGroupInfo() {
    return this.service.post("updateGroupInfo", { convoId: this.convoId, groupInfo: base64(await this.makeGroupInfo()),
      epoch: Number(this.epoch) });
  }
}

/** OpenMLS commits and applies in one step, so what must be undone when the commit loses is kept as a snapshot. */
export class OpenMember extends Member {
  constructor(...most) {
    super(...most);
    this.snapshots = new Map();
    this.adapter = { load: async (id) => this.snapshots.get(id) ?? null,
      save: async (id, bytes) => { this.snapshots.set(id, bytes); } };
  }
  async client() { return this.mls ??= await MlsClient.open(this.did, this.adapter); }

  async exported() { return Buffer.from(this.group.exportKey("same", new Uint8Array(), 32)).toString("hex"); }

  async makeKeyPackage() { return (await this.client()).keyPackage(); } // a bare KeyPackage, no MLSMessage around it

  async create() {
    this.group = (await this.client()).createGroup(this.convoId);
    this.epoch = this.firstEpoch = 0n;
    return this.service.post("createConvo", { groupId: this.convoId, cipherSuite: SUITE });
  }

  async joinWith(welcome, tree, groupInfo) {
    this.group = (await this.client()).joinGroup(welcome, tree, this.convoId);
    this.epoch = this.firstEpoch = groupInfo.groupContext.epoch;
  }

  /** The library proposes first and commits by reference: the proposal goes with the commit, or before it. */
  async stageAdd(keyPackage) {
    await this.mls.save();
    const made = this.group.add(keyPackage);
    this.sent.add(base64(made.proposal));
    return { commit: made.commit, welcome: made.welcome, proposals: [made.proposal] };
  }
  async add(other, keyPackage) { // one that was claimed before is still ours when a commit was lost
    assert(await this.submit(await this.stageAdd(keyPackage ?? (await this.claim([other]))[0])));
  }
  async proposeAndAdd(other) {
    const { proposals: [proposal], ...staged } = await this.stageAdd((await this.claim([other]))[0]), msgId = randomUUID();
    await this.service.post("sendProposal", { convoId: this.convoId, msgId, proposal: base64(proposal) });
    assert(await this.submit(staged));
  }
  adopt() { this.epoch++; }
  async discard() {
    this.mls = await MlsClient.open(this.did, this.adapter);
    this.group = this.mls.group(this.convoId);
  }

  async process(bytes) {
    const message = open(bytes), type = message.privateMessage?.contentType ?? message.publicMessage.content.contentType;
    const words = this.group.receive(bytes);
    if (type === "application") this.heard.push(text(words));
    else if (type === "commit") this.epoch++;
  }

  async encrypt(words) { return this.group.send(words); }
}
