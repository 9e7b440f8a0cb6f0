// SPDX-License-Identifier: Apache-2.0
// cost.mjs URL COUNT: makes COUNT commits with a Welcome and a group info, and sends COUNT messages, one after the
// other. It prints `before NAME` and `after NAME` around each kind and waits for a line on stdin, so that
// tools/bench-cost.py can read the server's counters there.
import { createInterface } from "node:readline";
import { randomUUID } from "node:crypto";
import { TsMember } from "./member.mjs";

const url = process.argv[2], count = Number(process.argv[3]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const mark = async (text) => {
  console.log(text);
  await lines.next();
};

const convoId = "cost-" + randomUUID();
const alice = new TsMember(url, convoId, "alice");
alice.isRaw = () => false;
await alice.create();

const add = async (name) => {
  const other = new TsMember(url, convoId, name);
  await other.publish();
  return alice.stageAdd([other]);
};
await alice.submit(await add("first")); // decides the kind of the conversation and loads its actor
for (let i = 0; i < count; i++) {
  const staged = await add("member " + i);
  await mark("before commit");
  await alice.submit(staged);
  await mark("after commit");
}
await alice.say("hello");
for (let i = 0; i < count; i++) {
  await mark("before message");
  await alice.say("words");
  await mark("after message");
}
process.exit(0);
