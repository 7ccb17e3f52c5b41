import assert from "node:assert/strict";
import { test } from "node:test";

import { Series, firstAfter, nearest, thin } from "../static/series.js";

const STORE = ["total_pages", "memory_bytes", "free_frame_bytes", "disk_bytes", "same_filled_pages", "compressed_pages"];
const COUNTS = ["puts", "refused_at_target", "refused_node_full", "hits", "misses"];

/** An answer whose samples are a second apart; `clients` are [name, first, used...]. */
function answer(since, length, clients, run_ms = 7) {
  const numbers = Array.from({ length }, (_, at) => since + at + 1);
  return {
    run_ms,
    interval_ms: 1000,
    capacity_bytes: 100,
    last: since + length,
    newest: since + length,
    at_ms: numbers.map((number) => number * 1000),
    elapsed_ms: numbers.map((number) => (number === 1 ? 0 : 500)),
    store: Object.fromEntries(STORE.map((name) => [name, numbers])),
    clients: clients.map(([name, first, ...used]) => ({
      name,
      first,
      used_pages: used,
      target_pages: used.map((it) => (it === 9 ? null : 5)),
      ...Object.fromEntries(COUNTS.map((count) => [count, used])),
    })),
  };
}

test("answers are put together, and clients come and go", () => {
  const series = new Series();
  assert.ok(series.add(answer(0, 3, [["a", 0, 1, 2, 3], ["b", 1, 4]])));
  assert.ok(series.add(answer(3, 2, [["a", 0, 9, 5], ["c", 1, 7]])));
  assert.ok(series.add(answer(5, 0, [])));
  assert.equal(series.last, 5);
  const used = (name) => series.clients.get(name).used_pages;
  assert.deepEqual(used("a"), [1, 2, 3, 9, 5]);
  assert.deepEqual(used("b"), [null, 4, null, null, null]);
  assert.deepEqual(used("c"), [null, null, null, null, 7]);
  assert.equal(series.clients.get("a").target_pages[3], Infinity);
  assert.deepEqual(series.totals.used_pages, [1, 6, 3, 9, 12]);
  assert.deepEqual(series.rates(series.totals, "puts"), [0, 12, 6, 18, 24]);
  assert.deepEqual(series.within(2000, 4000), [1, 4]);
});

test("one client after another under the same name is one line", () => {
  const series = new Series();
  series.add(answer(0, 4, [["a", 0, 1], ["a", 2, 3, 4]]));
  assert.deepEqual(series.clients.get("a").used_pages, [1, null, 3, 4]);
});

test("paged programs have lines and no part in the totals", () => {
  const series = new Series();
  const said = answer(0, 2, [["a", 0, 1, 2], ["p", 0, 8, 8]]);
  said.clients[1].program = true;
  series.add(said);
  assert.deepEqual(series.clients.get("p").used_pages, [8, 8]);
  assert.deepEqual(series.totals.used_pages, [1, 2]);
  assert.deepEqual([...series.programs], ["p"]);
});

test("another run begins anew", () => {
  const series = new Series();
  series.add(answer(0, 3, [["a", 0, 1, 2, 3]]));
  assert.equal(series.add(answer(3, 0, [], 8)), false);
  assert.equal(series.last, 0);
  assert.ok(series.add(answer(0, 1, [["b", 0, 1]], 8)));
  assert.deepEqual([...series.clients.keys()], ["b"]);
});

test("what is old goes, and clients with it", () => {
  const series = new Series();
  series.add(answer(0, 1, [["old", 0, 1]]));
  series.add(answer(1, 3600, []));
  assert.equal(series.at_ms.length, 3600);
  assert.equal(series.clients.size, 0);
});

test("the nearest place is found", () => {
  const times = [10, 20, 30];
  assert.deepEqual([5, 10, 29, 30].map((time) => firstAfter(times, time)), [0, 1, 2, 3]);
  assert.deepEqual([0, 14, 16, 99].map((time) => nearest(times, time, 0, 3)), [0, 0, 1, 2]);
  assert.equal(nearest(times, 0, 1, 3), 1);
  assert.equal(nearest(times, 0, 0, 0), -1);
});

test("thinning keeps peaks, dips and gaps", () => {
  const values = Array.from({ length: 1000 }, (_, at) => at % 10);
  values[503] = 99;
  values[700] = -1;
  values[811] = null;
  const places = thin(values, 0, 1000, 50);
  assert.ok(places.length <= 150);
  for (const place of [503, 700, 811]) assert.ok(places.includes(place), String(place));
  assert.deepEqual(places, [...places].sort((a, b) => a - b));
  assert.deepEqual(thin([1, 2, 3], 1, 3, 10), [1, 2]);
});
