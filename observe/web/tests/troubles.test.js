import assert from "node:assert/strict";
import { test } from "node:test";

import { troubles } from "../static/troubles.js";

const peer = { name: "b.test", health: "ok", health_s: 9, reason: "" };
const device = { device: 0, path: "/dev/nbd1", slabs_lost: 0, slabs_unreachable: 0 };
const disk = { name: "swap", state: "attached", reason: null, last_error: null, last_error_s: null };
const vm = { name: "web", state: "attached", problem: "an earlier one" };
const lending = { role: "borrower", helper: "ok", peers: [peer], devices: [device] };
const well = { lending, disks: [disk, { ...disk, state: "no guest" }], vms: [vm, { ...vm, state: "not running" }], store: { disk: { trouble: null } } };
const lines = (status) => troubles({ ...well, ...status }).map(({ text, part }) => `${part}: ${text}`);

test("a daemon that is well has no lines", () => {
  assert.deepEqual(lines({}), []);
  assert.deepEqual(lines({ lending: { role: "off" }, store: { disk: null } }), []);
  assert.deepEqual(lines({ lending: { ...lending, peers: [{ ...peer, health: "slow" }, { ...peer, health: "unknown" }] } }), []);
});

test("hosts out of reach are told with the reason, and what lies there", () => {
  const peers = [peer, { ...peer, name: "c.test", health: "unreachable", health_s: 130, reason: "connection refused" }, { ...peer, health: "refused" }];
  const devices = [device, { ...device, slabs_lost: 1, slabs_unreachable: 2 }, { ...device, path: "", device: 7, slabs_lost: 2 }];
  assert.deepEqual(lines({ lending: { ...lending, helper: "gone", peers, devices } }), [
    "lending: The process that swaps onto borrowed memory is gone.",
    "lending: Borrowed device /dev/nbd1: 1 slab lost.",
    "lending: Borrowed device /dev/nbd1: 2 slabs with no copy in reach.",
    "lending: Borrowed device 7: 2 slabs lost.",
    "lending: Host c.test is unreachable, for 2 min: connection refused",
    "lending: Host b.test is refused, for 9 s.",
  ]);
});

test("disks, guests and the store's disk are told", () => {
  const disks = [{ ...disk, state: "refused", reason: "its memory is no memfd" }, { ...disk, last_error: "block 7 is lost", last_error_s: 599 },
    { ...disk, last_error: "block 8 is lost", last_error_s: 600 }];
  const vms = [{ ...vm, state: "out of reach", problem: "no answer" }];
  assert.deepEqual(lines({ disks, vms, store: { disk: { trouble: "No space left" } } }), [
    "tiers: The store's disk takes no pages: No space left",
    "disks: Disk swap: its guest was refused: its memory is no memfd",
    "disks: Disk swap: a request failed 9 min ago: block 7 is lost",
    "guests: Guest web is out of reach: no answer",
  ]);
});
