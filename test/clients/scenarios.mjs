// SPDX-License-Identifier: Apache-2.0
// scenarios.mjs URL [NAME...]: real MLS clients against a running server; every scenario is a claim. ts-mls and OpenMLS
// are members of the same groups. RACE_S is how long the race lasts.
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { OpenMember, SUITE, TsMember } from "./member.mjs";
import { Refused, Service, base64, bytesOf } from "./service.mjs";

const [url, ...wanted] = process.argv.slice(2);
const RACE_S = Number(process.env.RACE_S ?? 10), RACERS = 16, LIMIT_MS = 30_000;

const newGroup = () => "group-" + randomBytes(8).toString("hex");
/** Members of one new conversation: the first creates it, all others are added at once and join. */
async function group(count, Kind = TsMember) {
  const convoId = newGroup();
  const members = Array.from({ length: count }, (_, i) => new (i === 0 ? TsMember : Kind)(url, convoId, "m" + i));
  const [first, ...others] = members;
  for (const other of others) await other.publish();
  await first.create();
  if (others.length > 0) {
    await first.add(...others);
    for (const other of others) await other.join();
  }
  return members;
}
async function refuses(status, label, promise) {
  const error = await promise.then(() => null, (e) => e);
  assert(error instanceof Refused, error ? error.stack : `${label} was expected, but it went well`);
  assert.deepEqual([error.status, error.label], [status, label], error.message);
  return error.body;
}
/** Poll-free waiting: resolves when `check` holds after one of the events that call tick(). */
class Bell {
  waiting = [];
  tick() { this.waiting = this.waiting.filter(({ check, done }) => !check() || done()); }
  until(what, check, limit_ms = LIMIT_MS) {
    if (check()) return Promise.resolve();
    return new Promise((go, fail) => {
      const timer = setTimeout(() => fail(Error(`waited ${limit_ms} ms until ${what}`)), limit_ms);
      this.waiting.push({ check, done: () => { clearTimeout(timer); go(); return false; } });
    });
  }
}
async function same(members) {
  const secrets = await Promise.all(members.map((member) => member.exported()));
  assert.equal(new Set(secrets).size, 1, "all have the same secret");
  const authenticators = new Set(members.filter((member) => member.authenticator).map((member) => member.authenticator()));
  assert(authenticators.size <= 1, "all have the same epoch authenticator");
}
/** All commits of a conversation, as a member sees them. */
async function commitsOf(member, fromEpoch = 0) {
  const commits = [];
  for (;;) {
    const page = await member.service.get("getCommits", { convoId: member.convoId, fromEpoch });
    commits.push(...page.commits);
    if (!page.hasMore) return commits;
    fromEpoch = page.commits.at(-1).epoch + 1;
  }
}
/** One winner per epoch: base epochs are first, first + 1, and so on, each once. */
function assertOneWinnerPerEpoch(commits, first, last) {
  assert.deepEqual(commits.map((commit) => commit.baseEpoch), Array.from({ length: last - first }, (_, i) => first + i));
  for (const commit of commits) assert.equal(commit.epoch, commit.baseEpoch + 1);
}

/** Whoever started us kills the server and starts it again. */
async function killServer() {
  Service.up = new Promise((go) => process.stdin.once("data", go));
  process.stdout.write("# kill the server\n");
  await Service.up;
}

/** How a member listens: both ways tell the same. */
const WAYS = { "server-sent events": "events", WebSocket: "frames" };
const overBothWays = (name, run) => Object.fromEntries(Object.entries(WAYS).map(([way, how]) =>
  [`${name} (${way})`, () => run(how)]));

const scenarios = {
  async "two clients create, add, join by Welcome and talk both ways"() {
    const [alice, bob] = await group(2);
    await alice.say("hello bob");
    assert.deepEqual(await bob.sync(), ["hello bob"]);
    await bob.say("hello alice");
    assert.deepEqual(await alice.sync(), ["hello alice"]);
    await same([alice, bob]);
    const view = await bob.service.get("getConvo", { convoId: bob.convoId });
    assert.deepEqual([view.epoch, view.members.map((m) => m.did).sort()], [1, [alice.did, bob.did].sort()]);
  },

  async "a claimed key package goes to nobody else, and a Welcome is fetched once"() {
    const convoId = newGroup(), alice = new TsMember(url, convoId, "alice"), bob = new TsMember(url, convoId, "bob");
    const eve = new TsMember(url, newGroup(), "eve");
    await bob.publish(1);
    await alice.claim([bob]);
    const answer = await eve.service.get("getKeyPackages", [["dids", bob.did], ["cipherSuite", SUITE]]);
    assert.deepEqual([answer.keyPackages, answer.missing], [[], [bob.did]]);
    await bob.publish(1);
    await alice.create();
    await alice.add(bob);
    await bob.join();
    await refuses(404, "WelcomeNotFound", bob.service.get("getWelcome", { convoId }));
    await refuses(404, "WelcomeNotFound", eve.service.get("getWelcome", { convoId }));
  },

  async "ts-mls and OpenMLS share a group, and each adds the other"() {
    const convoId = newGroup(), xena = new TsMember(url, convoId, "xena"), yuri = new OpenMember(url, convoId, "yuri");
    const zoe = new TsMember(url, convoId, "zoe");
    await yuri.publish(2);
    await zoe.publish();
    await xena.create();
    await xena.add(yuri);
    await yuri.join();
    await same([xena, yuri]);
    await xena.say("ping");
    assert.deepEqual(await yuri.sync(), ["ping"]);
    await yuri.say("pong");
    assert.deepEqual(await xena.sync(), ["pong"]);
    await yuri.add(zoe); // a proposal and a commit that refers to it, in one bundle
    await xena.sync();
    assert.equal(xena.epoch, 2n);
    await xena.updateGroupInfo(); // OpenMLS (WASM) makes none, and zoe needs the tree
    await zoe.join();
    await same([xena, yuri, zoe]);
    await zoe.say("all here");
    for (const member of [xena, yuri]) assert.deepEqual(await member.sync(), ["all here"]);
    const { messages } = await xena.service.get("getMessages", { convoId, sinceSeq: 2 });
    const at = messages.findIndex((message) => message.messageType === "proposal");
    assert.deepEqual(messages.slice(at, at + 2).map((message) => message.messageType), ["proposal", "commit"]);
  },

  async "a proposal that was sent by itself is committed by reference"() {
    const convoId = newGroup(), xena = new TsMember(url, convoId, "xena"), yuri = new OpenMember(url, convoId, "yuri");
    const zoe = new TsMember(url, convoId, "zoe");
    await yuri.publish();
    await zoe.publish();
    await xena.create();
    await xena.add(yuri);
    await yuri.join();
    await yuri.proposeAndAdd(zoe);
    await xena.sync();
    await xena.updateGroupInfo();
    await zoe.join();
    await same([xena, yuri, zoe]);
  },

  async "a public proposal that was sent by itself is committed by reference, and a forged one is refused"() {
    const [alice, bob, carol] = await group(3);
    await refuses(400, "InvalidMessage", bob.proposeRemoval(carol, (message) => { message.auth.signature[0] ^= 1; }));
    await refuses(400, "InvalidMessage", bob.proposeRemoval(carol, (message) => { message.content.sender.leafIndex = 0; }));
    await refuses(400, "InvalidMessage", bob.proposeRemoval(carol, (message) => { message.content.sender.leafIndex = 99; }));
    await bob.proposeRemoval(carol);
    await alice.sync();
    assert(await alice.submit({ ...await alice.stage(), removes: [carol.did] }));
    await bob.sync();
    assert.equal(bob.epoch, 2n);
    await same([alice, bob]);
  },

  async "a commit that adds or removes somebody unnamed is refused, and one that names somebody it does not touch"() {
    const [alice, bob, carol] = await group(3), dave = new TsMember(url, alice.convoId, "dave");
    const submit = ({ commit, groupInfo, welcome }, removes) => alice.service.post("submitCommit", { convoId: alice.convoId,
      commit: base64(commit), groupInfo: base64(groupInfo), welcomes: welcome ? [base64(welcome)] : [],
      ...(removes && { removes: removes.map((member) => member.did) }) });
    const removal = await alice.stageRemove([bob]), update = await alice.stage();
    await refuses(400, "RosterMismatch", submit(removal));
    await refuses(400, "RosterMismatch", submit(removal, [carol]));
    await refuses(400, "RosterMismatch", submit(update, [bob]));
    await dave.publish();
    const addition = await alice.stageAdd([dave]);
    await refuses(400, "RosterMismatch", submit({ ...addition, welcome: undefined }));
    assert.equal((await alice.service.get("getEpoch", { convoId: alice.convoId })).currentEpoch, 1, "nothing was stored");
    assert(await alice.submit(addition));
    await dave.join();
    for (const member of [bob, carol]) await member.sync();
    await same([alice, bob, carol, dave]);
  },

  async "who runs out of key packages hears it on the stream"() {
    const [alice, bob] = await group(2), eve = new TsMember(url, newGroup(), "eve"), bell = new Bell();
    await bob.publish(3);
    for (const how of Object.values(WAYS)) {
      const abort = new AbortController(), heard = [];
      let opened;
      const open = new Promise((go) => { opened = go; });
      const stream = (async () => {
        for await (const { event, data } of bob.service[how](bob.convoId, { signal: abort.signal, onOpen: opened })) {
          heard.push([event, data.available]);
          bell.tick();
        }
      })();
      await open;
      await alice.say("to be sure that bob listens");
      await bell.until("bob listens", () => heard.length === 1);
      await eve.claim([bob]);
      await bell.until("bob hears", () => heard.length === 2);
      assert.equal(heard[1][0], "keyPackagesLowEvent");
      assert(heard[1][1] < 3);
      abort.abort();
      await stream;
    }
  },

  async "a group that OpenMLS created is joined by ts-mls"() {
    const convoId = newGroup(), yuri = new OpenMember(url, convoId, "yuri"), xena = new TsMember(url, convoId, "xena");
    await xena.publish();
    await yuri.create();
    const staged = await yuri.add(xena).then(() => yuri.group.exportRatchetTree());
    const { welcome } = await xena.service.get("getWelcome", { convoId });
    await xena.joinWith(bytesOf(welcome), staged); // nobody could store a GroupInfo yet: the tree goes by hand
    await same([xena, yuri]);
    await yuri.say("from OpenMLS");
    assert.deepEqual(await xena.sync(), ["from OpenMLS"]);
    await xena.updateGroupInfo();
    assert.equal((await xena.groupInfo()).epoch, 1);
  },

  async "an OpenMLS commit that loses is rebased from the 409"() {
    const convoId = newGroup(), xena = new TsMember(url, convoId, "xena"), yuri = new OpenMember(url, convoId, "yuri");
    const zoe = new TsMember(url, convoId, "zoe");
    await yuri.publish();
    await zoe.publish();
    await xena.create();
    await xena.add(yuri);
    await yuri.join();
    const [keyPackage] = await yuri.claim([zoe]), staged = await yuri.stageAdd(keyPackage);
    assert(await xena.submit(await xena.stage()));
    assert.equal(await yuri.submit(staged), false);
    await same([xena, yuri]);
    await yuri.add(zoe, keyPackage);
    await xena.sync();
    await xena.updateGroupInfo();
    await zoe.join();
    await same([xena, yuri, zoe]);
  },

  async "of two commits for one epoch one wins, and the loser catches up in one round trip"() {
    const [alice, bob, carol] = await group(3);
    const staged = [await alice.stage(), await bob.stage()];
    const won = await Promise.all([alice.submit(staged[0]), bob.submit(staged[1])]);
    assert.deepEqual([...won].sort(), [false, true]);
    await same([alice, bob]);
    const loser = won[0] ? bob : alice;
    assert(await loser.submit(await loser.stage()));
    for (const member of [alice, bob, carol]) await member.sync();
    await same([alice, bob, carol]);
    assertOneWinnerPerEpoch(await commitsOf(alice), 0, 3);
  },

  async "every 409 has the commits that lead to the epoch it names, however fast the group moves"() {
    const [alice, bob] = await group(2), chain = [], stale = base64((await bob.stage()).commit), start = alice.state;
    for (let i = 0; i < 60; i++) {
      chain.push(await alice.stage());
      alice.adopt(chain[i]);
    }
    alice.state = start;
    let moving = true, conflicts = 0;
    assert(await alice.submit(chain[0])); // from here on bob's commit has lost
    const lose = Array.from({ length: 6 }, async () => {
      for (; moving; conflicts++) {
        const { status, body } = await bob.service.ask("submitCommit", { body: { convoId: bob.convoId, commit: stale } });
        assert.deepEqual([status, body.error, body.baseEpoch], [409, "EpochConflict", 1]);
        assert.deepEqual(body.commits.map((commit) => commit.baseEpoch),
          Array.from({ length: body.currentEpoch - 1 }, (_, i) => 1 + i), `the commits from 1 to ${body.currentEpoch}`);
      }
    });
    const failed = Promise.all(lose);
    failed.catch(() => { moving = false; });
    for (const staged of chain.slice(1)) assert(await alice.submit(staged));
    moving = false;
    await failed;
    await bob.sync();
    await same([alice, bob]);
    return `${conflicts} conflicts`;
  },

  async "the same commit again gets the first answer"() {
    const [alice, bob] = await group(2);
    const staged = await alice.stage();
    const body = { convoId: alice.convoId, commit: base64(staged.commit), groupInfo: base64(staged.groupInfo) };
    const first = await alice.service.post("submitCommit", body), again = await alice.service.post("submitCommit", body);
    assert.deepEqual(again, first);
    alice.adopt(staged);
    assert(await alice.submit(await alice.stage()));
    assert.deepEqual(await alice.service.post("submitCommit", body), first, "also when the group has moved on");
    await bob.sync();
    await same([alice, bob]);
    assertOneWinnerPerEpoch(await commitsOf(alice), 0, 3);
  },

  async "the same message again is stored once"() {
    const [alice, bob] = await group(2);
    const ciphertext = await alice.encrypt("once");
    const body = { convoId: alice.convoId, msgId: "twice", ciphertext: { $bytes: base64(ciphertext) }, epoch: 1 };
    const first = await alice.service.post("sendMessage", body), again = await alice.service.post("sendMessage", body);
    assert.deepEqual([again.seq, again.messageId], [first.seq, first.messageId]);
    assert.deepEqual(await bob.sync(), ["once"]);
  },

  async "messages of the last two epochs are taken, older and later ones are not"() {
    const [alice, bob] = await group(2);
    const late = []; // made now, sent when the group has moved on
    for (let i = 0; i < 4; i++) late.push(await bob.encrypt("late " + i));
    const send = (n) => bob.service.post("sendMessage", { convoId: bob.convoId, msgId: "late-" + n, epoch: 1,
      ciphertext: { $bytes: base64(late[n]) } });
    for (let i = 0; i < 3; i++) {
      await send(i);
      assert(await alice.submit(await alice.stage()));
    }
    const conflict = await refuses(409, "EpochMismatch", send(3));
    assert.equal(conflict.currentEpoch, 4);
    await bob.rebase(conflict);
    assert.deepEqual(await alice.sync(), ["late 0", "late 1", "late 2"]);
    await refuses(400, "InvalidRequest", bob.service.post("sendMessage", { convoId: bob.convoId, msgId: "lie", epoch: 3,
      ciphertext: { $bytes: base64(await bob.encrypt("lie")) } })); // not the epoch inside
  },

  async "a message keeps the epoch it was encrypted in, whenever it arrives"() {
    const [alice, bob] = await group(2), late = await bob.encrypt("late");
    assert(await alice.submit(await alice.stage()));
    const answer = await bob.service.post("sendMessage", { convoId: bob.convoId, msgId: "late", epoch: 1,
      ciphertext: { $bytes: base64(late) } });
    const { messages } = await alice.service.get("getMessages", { convoId: alice.convoId, type: "app" });
    assert.deepEqual([answer.epoch, messages.map((message) => message.epoch)], [1, [1]]);
  },

  async "a late joiner replays what came after its Welcome"() {
    const [alice, bob] = await group(2), carol = new TsMember(url, alice.convoId, "carol");
    await carol.publish();
    await alice.say("before carol");
    await alice.add(carol);
    const { groupInfo } = await carol.groupInfo();
    await bob.sync();
    for (let i = 0; i < 5; i++) {
      const [speaker, committer] = i % 2 ? [alice, bob] : [bob, alice];
      await speaker.sync();
      await speaker.say("while carol sleeps " + i);
      await committer.sync();
      assert(await committer.submit(await committer.stage()));
    }
    const { welcome } = await carol.service.get("getWelcome", { convoId: carol.convoId });
    await carol.joinWith(bytesOf(welcome), groupInfo.extensions.find((e) => e.extensionType === "ratchet_tree").extensionData);
    assert.equal(carol.epoch, 2n);
    assert.deepEqual(await carol.sync(), Array.from({ length: 5 }, (_, i) => "while carol sleeps " + i));
    for (const member of [alice, bob]) await member.sync();
    await same([alice, bob, carol]);
  },

  async "a removed member sees the commit that removes it, and nothing after"() {
    const [alice, bob, carol] = await group(3);
    await alice.say("with bob");
    const late = await bob.encrypt("I am still here");
    await alice.remove(bob);
    await alice.say("without bob");
    assert.deepEqual(await bob.sync(), ["with bob"]);
    assert(bob.removed);
    assert.deepEqual(await carol.sync(), ["with bob", "without bob"]);
    await same([alice, carol]);
    await refuses(403, "NotMember", bob.service.post("sendMessage", { convoId: bob.convoId, msgId: "late", epoch: 1,
      ciphertext: { $bytes: base64(late) } }));
    await refuses(403, "NotMember", bob.service.get("getConvo", { convoId: bob.convoId }));
    await refuses(403, "NotMember", bob.service.get("getEpoch", { convoId: bob.convoId }));
  },

  async "a removed member neither reads the GroupInfo nor joins again by itself"() {
    const [alice, bob] = await group(2);
    const staged = await bob.stageExternal(true);
    await alice.remove(bob);
    await refuses(403, "NotMember", bob.service.get("getGroupInfo", { convoId: bob.convoId }));
    await refuses(403, "NotMember", bob.service.post("processExternalCommit", { convoId: bob.convoId,
      externalCommit: base64(staged.commit), groupInfo: base64(staged.groupInfo) }));
  },

  async "a member that was removed comes back by a new Welcome"() {
    const [alice, bob] = await group(2);
    await alice.remove(bob);
    await alice.say("secret");
    const again = new TsMember(url, alice.convoId, "bob again", bob.service);
    await again.publish();
    await alice.add(again);
    await again.join();
    await alice.say("welcome back");
    assert.deepEqual(await again.sync(), ["welcome back"]);
    await same([alice, again]);
  },

  async "an invited member joins by the stored GroupInfo"() {
    const convoId = newGroup(), alice = new TsMember(url, convoId, "alice"), erin = new TsMember(url, convoId, "erin");
    await alice.create([erin]);
    await erin.joinExternally();
    await alice.sync();
    await same([alice, erin]);
    await erin.say("joined by GroupInfo");
    assert.deepEqual(await alice.sync(), ["joined by GroupInfo"]);
    await alice.say("good");
    assert.deepEqual(await erin.sync(), ["good"]);
  },

  async "whoever finds an open group joins it, until it is closed"() {
    const [alice, bob] = await group(2), policy = (open) => alice.service.post("updatePolicy",
      { convoId: alice.convoId, allowExternalCommits: open });
    const [erin, fred] = ["erin", "fred"].map((name) => new TsMember(url, alice.convoId, name));
    await refuses(403, "NotMember", erin.joinExternally());
    await policy(true);
    await erin.joinExternally();
    for (const member of [alice, bob]) await member.sync();
    await same([alice, bob, erin]);
    await erin.say("found you");
    for (const member of [alice, bob]) assert.deepEqual(await member.sync(), ["found you"]);
    const staged = await fred.stageExternal(false);
    await policy(false);
    await refuses(403, "NotMember", fred.service.post("processExternalCommit", { convoId: fred.convoId,
      externalCommit: base64(staged.commit), groupInfo: base64(staged.groupInfo) }));
    await refuses(403, "NotAdmin", bob.service.post("updatePolicy", { convoId: bob.convoId, allowExternalCommits: true }));
  },

  async "a GroupInfo serves one external join: the second gets 409 and fetches the next"() {
    const convoId = newGroup(), alice = new TsMember(url, convoId, "alice");
    const [erin, fred] = ["erin", "fred"].map((name) => new TsMember(url, convoId, name));
    await alice.create([erin, fred]);
    const late = await fred.stageExternal(false);
    await erin.joinExternally();
    const conflict = await refuses(409, "EpochConflict", fred.service.post("processExternalCommit", { convoId,
      externalCommit: base64(late.commit), groupInfo: base64(late.groupInfo) }));
    assert.equal(conflict.currentEpoch, 1);
    await fred.joinExternally();
    for (const member of [alice, erin]) await member.sync();
    await same([alice, erin, fred]);
  },

  async "a member who lost its state comes back by a resync"() {
    const [alice, bob, carol] = await group(3);
    const lost = new TsMember(url, bob.convoId, "bob, again", bob.service);
    lost.packages = bob.packages; // the signature key is all it has
    await lost.joinExternally(true);
    for (const member of [alice, carol]) await member.sync();
    await same([alice, carol, lost]);
    await alice.say("welcome back");
    await lost.say("thanks");
    assert.deepEqual(await lost.sync(), ["welcome back"]);
    assert.deepEqual(await carol.sync(), ["welcome back", "thanks"]);
  },

  async "a second device of a member joins by the stored GroupInfo"() {
    const [alice, bob] = await group(2), phone = new TsMember(url, bob.convoId, "bob's phone", bob.service);
    await phone.joinExternally();
    for (const member of [alice, bob]) await member.sync();
    await same([alice, bob, phone]);
    await phone.say("from the phone");
    for (const member of [alice, bob]) assert.deepEqual(await member.sync(), ["from the phone"]);
    await bob.say("from the desk");
    assert.deepEqual(await phone.sync(), ["from the desk"]);
  },

  async "an external commit in another's name is refused"() {
    const [alice, bob] = await group(2), carol = new TsMember(url, alice.convoId, "carol");
    await carol.publish();
    await alice.add(carol);
    await carol.join();
    // Bob brings an external commit whose leaf says it is Carol.
    const forger = new TsMember(url, alice.convoId, "forger", bob.service);
    forger.did = carol.did;
    const staged = await forger.stageExternal(false);
    const error = await bob.service.ask("processExternalCommit", { body: { convoId: bob.convoId,
      externalCommit: base64(staged.commit), groupInfo: base64(staged.groupInfo) } });
    assert(error.status >= 400 && error.status < 500, `it was taken with ${error.status}`);
  },

  async "a stranger learns nothing"() {
    const [alice] = await group(2), eve = new TsMember(url, alice.convoId, "eve");
    await alice.say("secret");
    for (const method of ["getConvo", "getEpoch", "getMessages", "getGroupInfo"])
      await refuses(403, "NotMember", eve.service.get(method, { convoId: alice.convoId }));
    await refuses(403, "NotMember", eve.service.get("getCommits", { convoId: alice.convoId, fromEpoch: 0 }));
    await refuses(403, "NotMember", (async () => { for await (const _ of eve.service.events(alice.convoId)) ; })());
    await refuses(403, "NotMember", eve.service.post("submitCommit", { convoId: alice.convoId,
      commit: base64((await alice.stage()).commit) }));
  },

  async "a GroupInfo of another epoch or with a broken signature is refused with its commit"() {
    const [alice, bob] = await group(2);
    const staged = await alice.stage(), submit = (groupInfo) => alice.service.post("submitCommit",
      { convoId: alice.convoId, commit: base64(staged.commit), groupInfo: base64(groupInfo) });
    await refuses(400, "InvalidGroupInfo", submit(await alice.makeGroupInfo()));
    const broken = Buffer.from(staged.groupInfo);
    broken[broken.length - 1] ^= 1;
    await refuses(400, "InvalidGroupInfo", submit(broken));
    assert.equal((await alice.service.get("getEpoch", { convoId: alice.convoId })).currentEpoch, 1, "nothing was stored");
    await submit(staged.groupInfo);
    await bob.sync();
    assert.equal(bob.epoch, 2n);
  },

  async "a commit that nobody can process is taken back by those who cannot, and the group goes on"() {
    const [alice, bob, carol, mallory] = await group(4), bytes = Buffer.from((await mallory.stage()).commit);
    bytes[bytes.length - 1] ^= 1; // framed well; no member can open it
    const { newEpoch } = await mallory.service.post("submitCommit", { convoId: mallory.convoId, commit: base64(bytes) });
    assert.equal(newEpoch, 2);
    await assert.rejects(bob.sync(), "it cannot be opened");
    const [wedge] = await commitsOf(bob, 2), sha256 = createHash("sha256").update(bytesOf(wedge.commitData)).digest("hex");
    const report = (member) => member.service.post("reportInvalidCommit", { convoId: member.convoId, baseEpoch: 1, sha256 });
    await refuses(403, "NotEligible", report(mallory));
    assert.equal((await report(bob)).revoked, false);
    assert.equal((await report(bob)).revoked, false, "one member is one voice");
    assert.equal((await report(carol)).revoked, true);
    assert.equal((await alice.service.get("getEpoch", { convoId: alice.convoId })).currentEpoch, 1);
    assert(await carol.submit(await carol.stage()));
    for (const member of [alice, bob]) await member.sync();
    await same([alice, bob, carol]);
    await refuses(403, "CommitterQuarantined", mallory.service.post("submitCommit", { convoId: mallory.convoId,
      commit: base64((await mallory.stage()).commit) }));
    await bob.say("on we go");
    assert.deepEqual(await alice.sync(), ["on we go"]);
  },

  async "members who confirm an epoch differently are told that the group may have split"() {
    const [alice, bob] = await group(2);
    const confirm = (member, hash) => member.service.post("confirmEpoch", { convoId: member.convoId, epoch: 1,
      epochAuthenticatorHash: hash });
    const hash = (member) => createHash("sha256").update(member.authenticator()).digest("hex");
    assert.equal((await confirm(alice, hash(alice))).forkSuspected, false);
    assert.equal((await confirm(bob, hash(bob))).forkSuspected, false);
    const [carol, dave] = await group(2);
    await confirm(carol, hash(carol));
    assert.equal((await confirm(dave, "00".repeat(32))).forkSuspected, true);
  },

  async "a group that is reset begins anew with another id, and its members join again"() {
    const [alice, bob, carol] = await group(3), name = newGroup();
    await refuses(403, "NotAdmin", bob.service.post("resetGroup", { convoId: bob.convoId, newGroupId: name }));
    await alice.service.post("resetGroup", { convoId: alice.convoId, newGroupId: name });
    await refuses(400, "InvalidCommit", bob.service.post("submitCommit", { convoId: bob.convoId,
      commit: base64((await bob.stage()).commit) })); // of the former group
    await alice.begin(name);
    for (const member of [bob, carol]) await member.publish();
    await alice.add(bob, carol);
    for (const member of [bob, carol]) await member.join();
    await same([alice, bob, carol]);
    assert.equal(alice.epoch, 1n);
    await bob.say("a fresh start");
    for (const member of [alice, carol]) assert.deepEqual(await member.sync(), ["a fresh start"]);
    assertOneWinnerPerEpoch(await commitsOf(alice), 0, 1);
  },

  async "public handshakes are taken like private ones"() {
    const [alice, bob] = await group(2);
    assert(await alice.submit(await alice.stage([], { wireAsPublicMessage: true })));
    await bob.sync();
    await same([alice, bob]);
  },

  async "a message in the commit's bundle arrives after the commit"() {
    const [alice, bob] = await group(2);
    const staged = await alice.stage(), now = alice.state;
    alice.state = staged.next; // the message is of the epoch the commit leads to
    const appMessage = await alice.encrypt("with the commit"), after = alice.state;
    alice.state = now;
    assert(await alice.submit({ ...staged, next: after, appMessage }));
    assert.deepEqual(await bob.sync(), ["with the commit"]);
    await same([alice, bob]);
  },

  ...overBothWays("a stream resumes without gap or duplicate while messages and commits flow", async (how) => {
    const [alice, bob, carol] = await group(3), bell = new Bell(), seen = [];
    const start = (await carol.service.get("getMessages", { convoId: carol.convoId })).currentSeq;
    let flowing = true, cuts = 0, cursor = start, last = Infinity, abort;
    const talk = async (member) => {
      for (let i = 0; flowing; i++) {
        await member.sync();
        await member.say(`${member.name} ${i}`);
        if (i % 7 === 3) await member.submit(await member.stage());
      }
    };
    const listen = async () => {
      while (cursor < last) {
        abort = new AbortController();
        const cutAfter = 1 + Math.floor(Math.random() * 12); // more events, then the connection is gone
        let count = 0;
        for await (const { id, event, data } of carol.service[how](carol.convoId, { cursor, signal: abort.signal })) {
          if (event !== "messageEvent") continue;
          seen.push(data.message);
          cursor = Number(id);
          assert.equal(cursor, data.seq);
          bell.tick();
          if (flowing && ++count === cutAfter) { cuts++; break; }
          if (cursor >= last) break;
        }
        abort.abort();
        bell.tick();
      }
    };
    const running = [talk(alice), talk(bob), listen()];
    const failed = Promise.all(running);
    await Promise.race([bell.until("40 cuts", () => cuts >= 40), failed]);
    flowing = false;
    await Promise.all(running.slice(0, 2));
    last = (await carol.service.get("getMessages", { convoId: carol.convoId })).currentSeq;
    if (cursor >= last) abort.abort();
    await Promise.race([running[2], bell.until("the stream is at the end", () => cursor >= last)]);
    abort.abort();
    await running[2];
    assert.deepEqual(seen.map((m) => m.seq), Array.from({ length: last - start }, (_, i) => start + 1 + i));
    for (const message of seen) await carol.take(message);
    for (const member of [alice, bob]) await member.sync();
    await same([alice, bob, carol]);
    assert.deepEqual([...carol.heard].sort(), [...new Set(carol.heard)].sort(), "each text once");
    return `${seen.length} events, ${cuts} cuts`;
  }),

  async "many streams opened at every moment hear everything exactly once"() {
    const [alice, bob] = await group(2), streams = [];
    let flowing = true;
    const aborts = [];
    const open = (cursor, how) => new Promise((go, fail) => {
      const stream = { cursor, seen: [], bell: new Bell() }, abort = new AbortController();
      streams.push(stream);
      aborts.push(abort);
      (async () => {
        for await (const { event, data } of bob.service[how](bob.convoId, { cursor, signal: abort.signal, onOpen: go }))
          if (event === "messageEvent") { stream.seen.push(data.seq); stream.bell.tick(); }
      })().catch(fail);
    });
    const words = []; // encrypted before, so that the server has many on their way at once
    for (let i = 0; i < 600; i++) words.push(await alice.encrypt("word " + i));
    const talk = Promise.all(Array.from({ length: 8 }, async () => {
      for (let word; flowing && (word = words.pop());)
        await alice.service.post("sendMessage", { convoId: alice.convoId, msgId: "word-" + words.length, epoch: 1,
          ciphertext: { $bytes: base64(word) } });
    }));
    for (let i = 0; i < 60; i++) {
      const { currentSeq } = await bob.service.get("getMessages", { convoId: bob.convoId, limit: 1 });
      await open(Math.max(2, currentSeq - i % 5), Object.values(WAYS)[i % 2]); // bob joined at 2
    }
    flowing = false;
    await talk;
    const { currentSeq: last } = await bob.service.get("getMessages", { convoId: bob.convoId, limit: 1 });
    for (const { cursor, seen, bell } of streams) {
      await bell.until(`all of ${cursor} to ${last} came`, () => seen.at(-1) >= last || cursor >= last);
      assert.deepEqual(seen, Array.from({ length: last - cursor }, (_, i) => cursor + 1 + i));
    }
    for (const abort of aborts) abort.abort();
    return `${streams.length} streams, ${last} messages`;
  },

  ...overBothWays("a removed member's stream ends after the commit that removed it", async (how) => {
    const [alice, bob] = await group(2), heard = [];
    let opened, ended;
    const open = new Promise((go) => { opened = go; });
    const stream = (async () => {
      for await (const { event, data } of bob.service[how](bob.convoId, { onOpen: opened }))
        heard.push(event === "messageEvent" ? data.message.messageType : data.action ? `member ${data.action}` : data.info);
      ended = Date.now();
    })();
    await open;
    await alice.say("one");
    await alice.remove(bob);
    const removed = Date.now();
    await alice.say("two");
    await Promise.race([stream, new Bell().until("the stream ends", () => false)]);
    assert.deepEqual(heard, ["app", "commit", "member removed", "removed"]);
    await refuses(403, "NotMember", (async () => { for await (const _ of bob.service.events(bob.convoId)) ; })());
    return `${ended - removed} ms after the answer to the committer`;
  }),

  async "clients that race and talk lose nothing when the server is killed"() {
    const members = await group(4), KILLS = 5, acked = new Map(), bell = new Bell(); // text: who said it
    let racing = true;
    for (const member of members) member.service.isPatient = true;
    const race = members.map(async (member) => {
      for (let n = 0; racing; n++) {
        await member.submit(await member.stage());
        await member.sync();
        const words = `${member.name} ${n}`;
        await member.say(words).then(() => { acked.set(words, member); bell.tick(); }, (error) => {
          if (error.label !== "EpochMismatch") throw error;
          return member.rebase(error.body);
        });
      }
    });
    const failed = Promise.all(race);
    for (let i = 0; i < KILLS; i++) {
      const enough = acked.size + 8;
      await Promise.race([failed, bell.until(`${enough} messages`, () => acked.size >= enough, 4 * LIMIT_MS)]);
      await Promise.race([failed, killServer()]);
    }
    racing = false;
    await failed;
    for (const member of members) await member.sync();
    await same(members);
    assertOneWinnerPerEpoch(await commitsOf(members[0]), 0, Number(members[0].epoch));
    for (const member of members) {
      assert.equal(new Set(member.heard).size, member.heard.length, "nothing came twice");
      for (const [words, speaker] of acked) assert(speaker === member || member.heard.includes(words), `${words} is not lost`);
    }
    return `${KILLS} kills, ${acked.size} messages and ${members[0].epoch} epochs`;
  },

  async [`${RACERS} clients race commits: one winner per epoch, and all end in the same place`]() {
    const members = await group(RACERS), first = 1, until = Date.now() + RACE_S * 1000;
    const late = new TsMember(url, members[0].convoId, "late");
    let won = 0, staged = 0;
    await Promise.all(members.map(async (member, i) => {
      for (let n = 0; Date.now() < until; n++) {
        await new Promise((go) => setTimeout(go, Math.random() * 50)); // people think before they act
        const mine = await member.stage();
        staged++;
        if (await member.submit(mine)) won++;
        await member.sync();
        if (n % 8 === i % 8) await member.say(`${member.name} ${n}`).catch((error) => {
          if (error.label !== "EpochMismatch") throw error;
          return member.rebase(error.body);
        });
      }
    }));
    for (const member of members) await member.sync();
    await same(members);
    const lost = members.reduce((sum, member) => sum + member.conflicts, 0);
    assert.equal(won + lost, staged, "every commit won or lost");
    const commits = await commitsOf(members[0], first);
    assertOneWinnerPerEpoch(commits.filter((commit) => commit.baseEpoch >= first), first, first + won);
    assert.equal(members[0].epoch, BigInt(first + won));
    assert(lost > 0 && won > 1, "it was a race");
    await late.publish();
    await members[3].add(late);
    await late.join();
    await late.say("done");
    for (const member of members) assert.equal((await member.sync()).at(-1), "done");
    await same([...members, late]);
    const winners = new Set(commits.map((commit) => commit.sender)).size;
    return `${won} epochs, ${lost} losers, ${winners} of ${RACERS} won at least once, in ${RACE_S} s`;
  },
};

let failed = 0, passed = 0;
for (const [name, run] of Object.entries(scenarios)) {
  if (wanted.length > 0 && !wanted.some((part) => name.includes(part))) continue;
  const began = performance.now();
  try {
    const note = await run();
    passed++;
    console.log(`ok - ${name} (${Math.round(performance.now() - began)} ms${note ? "; " + note : ""})`);
  } catch (error) {
    failed++;
    console.log(error.stack.replace(/^/gm, "    "));
    console.log(`not ok - ${name}`);
  }
}
console.log(`${passed} passed, ${failed} failed, 0 skipped`);
process.exit(failed > 0 ? 1 : 0);
