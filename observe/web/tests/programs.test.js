import assert from "node:assert/strict";
import { test } from "node:test";

import { PROGRAM_HEADS, programRow } from "../static/programs.js";
import { Series } from "../static/series.js";

test("a program has faults, first touches and pages fetched again, not puts and gets", () => {
  const series = new Series();
  const store = ["total_pages", "memory_bytes", "free_frame_bytes", "disk_bytes", "same_filled_pages", "compressed_pages"];
  // 30 first touches, 20 pages fetched again, 10 other faults in half a second.
  const program = { name: "p-1", program: true, first: 0, used_pages: [256], target_pages: [null], puts: [50], refused_at_target: [20],
    refused_node_full: [0], hits: [40], misses: [20] };
  series.add({ run_ms: 1, interval_ms: 500, capacity_bytes: 0, last: 1, newest: 1, at_ms: [1000], elapsed_ms: [500],
    store: Object.fromEntries(store.map((name) => [name, [0]])), clients: [program] });
  const known = { cap_pages: 512, statistics: { evicted_pages: 1024 } };
  const row = programRow("p-1", series, known, 0);
  assert.deepEqual(row.cells, ["p-1", "1 MiB", "no limit", "2 MiB", "120/s", "60/s", "40/s", "4 MiB"]);
  assert.deepEqual(row.values, ["p-1", 256, Infinity, 512, 120, 60, 40, 1024]);
  const unknown = programRow("p-1", series, undefined, 0);
  assert.deepEqual(unknown.cells.slice(3), ["–", "120/s", "60/s", "40/s", "–"]);
  assert.deepEqual(unknown.values.slice(3), [-1, 120, 60, 40, -1]);
  assert.ok(!PROGRAM_HEADS.some((head) => /\b(puts?|gets?|refused)\b/i.test(head)));
});
