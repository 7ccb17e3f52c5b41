import assert from "node:assert/strict";
import { test } from "node:test";

import { byteTicks, bytes, count, counted, countTicks, duration, fit, limit, pages, percent, rate, shortNames } from "../static/format.js";

test("one is not in the plural", () => {
  assert.deepEqual([0, 1, 2, 12_300].map((number) => counted(number, "page")), ["0 pages", "1 page", "2 pages", "12.3 k pages"]);
});

test("sizes have three digits and a unit", () => {
  const expected = [[0, "0 MiB"], [1, "1 B"], [4096, "4 KiB"], [1 << 20, "1 MiB"], [1.5 * 2 ** 30, "1.5 GiB"],
    [2 ** 20 * 1023.9, "1 GiB"], [2 ** 20 * 123.4, "123 MiB"], [2 ** 20 * 12.34, "12.3 MiB"], [2 ** 60, "1024 PiB"]];
  for (const [size, text] of expected) assert.equal(bytes(size), text);
  assert.equal(pages(256), "1 MiB");
  assert.equal(limit(null), "no limit");
});

test("counts stay short", () => {
  const expected = [[0, "0"], [0.5, "0.5"], [100, "100"], [1234, "1234"], [12_345, "12.3 k"], [1_200_000, "1.2 M"], [5e9, "5 G"]];
  for (const [number, text] of expected) assert.equal(count(number), text);
  assert.equal(rate(20), "20/s");
  assert.equal(percent(1, 8), "12.5 %");
  assert.equal(percent(0, 0), "–");
});

test("an axis has a few lines and covers all", () => {
  for (const most of [0, 1, 7, 99, 1e4, 123_456, 2 ** 20, 3 * 2 ** 28, 2 ** 45]) {
    for (const ticks of [byteTicks, countTicks]) {
      const lines = ticks(most);
      assert.equal(lines[0], 0);
      assert.ok(lines.at(-1) >= most, `${most}: ${lines}`);
      assert.ok(lines.length >= 2 && lines.length <= 6, `${most}: ${lines}`);
    }
  }
  assert.deepEqual(byteTicks(48 << 20), [0, 16, 32, 48].map((mib) => mib << 20));
  assert.deepEqual(countTicks(100), [0, 50, 100]);
});

test("names are as short as they can be told apart", () => {
  const names = shortNames(["nqn.io.example:a", "nqn.io.example:b", "x:b", "uid-0", "odd:"]);
  assert.deepEqual([...names.values()], ["a", "nqn.io.example:b", "x:b", "uid-0", "odd:"]);
});

test("durations have their two largest units", () => {
  const expected = [[0, "0 s"], [59, "59 s"], [60, "1 min"], [3599, "59 min"], [3720, "1 h 2 min"], [90_000, "1 d 1 h"]];
  for (const [seconds, text] of expected) assert.equal(duration(seconds), text);
});

test("a name is whole if there is room, and else lacks its middle", () => {
  const width = (text) => [...text].length;
  assert.equal(fit("analytics-database", 18, width), "analytics-database");
  assert.equal(fit("analytics-database", 9, width), "anal…base");
  assert.equal(fit("名前の長い客", 4, width), "名…い客");
  assert.equal(fit("abc", 1, width), "…");
});
