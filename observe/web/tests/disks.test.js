import assert from "node:assert/strict";
import { test } from "node:test";

import { diskRows } from "../static/disks.js";

const statistics = { store_read_pages: 256, file_read_pages: 256, zero_read_pages: 0, store_written_pages: 256, file_written_pages: 0,
  refused_pages: 0, discarded_pages: 7, demoted_pages: 0, errors: 2, refused_guests: 1 };
const swap = { name: "swap", client: "vm", kind: "swap", state: "attached", reason: null, state_s: 90, bytes: 2 ** 30, held_pages: 512,
  unread_pages: 256, last_error: null, last_error_s: null, statistics };

test("a disk is a row with its guest's state, since when, and why", () => {
  const refused = { ...swap, name: "old", state: "refused", reason: "its memory is no sealed memfd", held_pages: null };
  const rows = diskRows([swap, refused, { ...swap, statistics: { ...statistics, errors: 0 } }]);
  const [first, second] = rows.map((row) => row.cells);
  assert.deepEqual(rows.map((row) => row.bad), [[11], [2, 11], []]);
  assert.deepEqual(first, ["swap", "vm", "attached, 1 min", "1 GiB", "2 MiB", "1 MiB", "2 MiB", "1 MiB", "28 KiB", "0 MiB", "0 MiB", "2", "1", "–"]);
  assert.deepEqual([second[2], second[4], second[13]], ["refused, 1 min", "–", "its memory is no sealed memfd"]);
  const [failing] = diskRows([{ ...swap, last_error: "block 7 is lost", last_error_s: 60 }]).map((row) => row.cells);
  assert.equal(failing[13], "1 min ago: block 7 is lost");
});
