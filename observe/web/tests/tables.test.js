import assert from "node:assert/strict";
import { test } from "node:test";

import { inOrder } from "../static/tables.js";

const rows = [["b", 1, Infinity], ["a", 3, 5], ["d", 2, -1], ["c", 3, Infinity]].map((values) => ({ values }));
const names = (column, turned) => inOrder(rows, { column, turned }).map(({ values }) => values[0]).join("");

test("rows are by name upwards, by a number downwards, and the other way round", () => {
  assert.equal(names(0, false), "abcd");
  assert.equal(names(0, true), "dcba");
  assert.equal(names(1, false), "acdb");
  assert.equal(names(1, true), "bdac");
  assert.equal(rows[0].values[0], "b", "the rows that were given stay");
});

test("no limit is above every number, and what is unknown below", () => {
  assert.equal(names(2, false), "bcad");
  assert.equal(names(2, true), "dabc");
});
