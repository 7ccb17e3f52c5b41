import assert from "node:assert/strict";
import { test } from "node:test";

import { facts } from "../static/title.js";

test("the title row says which daemon this is, and what changes comes last", () => {
  const version = { host: "db-7", version: "1.2.3", commit: "0123456789abcdef" };
  const health = { memory_locked: true, restarts: 1, uptime_seconds: 3720 };
  assert.deepEqual(facts(version, health), ["db-7", "1.2.3 (01234567)", "memory locked", "1 restart", "up 1 h 2 min"]);
  const bare = facts({ host: "", version: "1.2.3", commit: null }, { memory_locked: false, restarts: 0, uptime_seconds: 5 });
  assert.deepEqual(bare, ["unnamed host", "1.2.3", "memory not locked", "0 restarts", "up 5 s"]);
});
