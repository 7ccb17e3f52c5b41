import assert from "node:assert/strict";
import { test } from "node:test";

import { Sizes, guestRows } from "../static/guests.js";

const MIB = 2 ** 20;
const web = { name: "web", state: "attached", problem: null, size_bytes: 1024 * MIB, aim_bytes: null, target_bytes: 768 * MIB,
  least_bytes: 512 * MIB, most_bytes: 4096 * MIB, wanted_bytes: 0, kept_bytes: 0, auto: true, agent: { available_bytes: 200 * MIB } };
const db = { ...web, name: "db", state: "not running", problem: "no QEMU listens on /run/db.qmp", size_bytes: null, auto: false, agent: null };

test("a guest is a row, also one that does not run", () => {
  const changing = { ...web, aim_bytes: 1152 * MIB, wanted_bytes: 128 * MIB };
  const [first, second] = guestRows([changing, db]);
  assert.deepEqual(first.cells, ["web", "1 GiB to 1.13 GiB", "768 MiB", "512 MiB", "4 GiB", "200 MiB", "128 MiB", "–", "on", "attached"]);
  assert.deepEqual(second.cells, ["db", "–", "768 MiB", "512 MiB", "4 GiB", "–", "–", "–", "off", "not running"]);
  assert.equal(second.title, db.problem);
  assert.deepEqual(guestRows([db, { ...db, state: "out of reach" }]).map((row) => row.bad), [[], [9]]);
});

test("sizes are as long as the moments, with gaps where a guest did not run", () => {
  const sizes = new Sizes();
  sizes.add(1000, [web]);
  sizes.add(2000, [{ ...web, size_bytes: 512 * MIB }, db]);
  assert.deepEqual(sizes.at_ms, [1000, 2000]);
  assert.deepEqual(sizes.guests.get("web").size, [1024 * MIB, 512 * MIB]);
  assert.deepEqual(sizes.guests.get("db"), { size: [null, null], target: [null, null] });
  for (let at = 3; at <= 3700; at += 1) sizes.add(at * 1000, [web, db]);
  assert.equal(sizes.at_ms.length, 3600);
  assert.equal(sizes.guests.get("web").size.length, 3600);
  assert.equal(sizes.at_ms.at(-1), 3_700_000);
});
