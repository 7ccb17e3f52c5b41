import assert from "node:assert/strict";
import { test } from "node:test";

import { loanRows, peerRows, stateOf } from "../static/lending.js";

const well = { name: "c.test", address: "192.0.2.3:4422", rack: "", spare_bytes: 2 ** 20, health: "ok", reason: "", health_s: 40 };
const dead = { ...well, name: "b.test", rack: "r1", spare_bytes: 0, health: "unreachable", reason: "connection refused", health_s: 45_000 };

test("a host is a row with its health, since when, and why", () => {
  const rows = peerRows([well, dead]);
  const [first, second] = rows.map((row) => row.cells);
  assert.deepEqual(first, ["c.test", "192.0.2.3:4422", "–", "1 MiB", "ok", "40 s", "–"]);
  assert.deepEqual(second, ["b.test", "192.0.2.3:4422", "r1", "0 MiB", "unreachable", "12 h 30 min", "connection refused"]);
  assert.deepEqual(rows.map((row) => row.bad), [[], [4]]);
});

test("what lies with a host that does not answer says so", () => {
  assert.equal(stateOf({ state: "attached", health: "ok" }), "attached");
  assert.equal(stateOf({ state: "attached", health: "unreachable" }), "attached, unreachable");
  const loan = { loan: "1", lender: "b.test", device: 0, bytes: 0, state: "held", health: "unreachable", lease_ms: 4000 };
  const lent = { loan: "2", borrower: "c.test", bytes: 0, used_bytes: 0, state: "lent", health: "ok", lease_ms: 4000 };
  const rows = loanRows({ host: "a.test", lent: [lent], borrowed: [loan], devices: [] });
  assert.deepEqual(rows.map((row) => row.cells[4]), ["lent", "held, unreachable"]);
  assert.deepEqual(rows.map((row) => row.bad), [[], [4]]);
});
