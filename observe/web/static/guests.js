// Guests that grow and shrink: the section pool, their sizes over time, and a row for each. Hidden without guests in the
// configuration.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { byteTicks, bytes, clock } from "./format.js";
import { Legend, write } from "./legend.js";
import { firstAfter } from "./series.js";
import { Table } from "./tables.js";

/** Most samples that are kept, and most guests with a line: the number of line styles. */
const MOMENTS_MAX = 3600;
const LINES_MAX = 8;

const at = (id) => document.getElementById(id);
const size = (count) => (count === null || count === undefined ? "–" : bytes(count));
const some = (count) => (count ? bytes(count) : "–");

/** The sizes of guests over time, in columns of the same length. */
export class Sizes {
  at_ms = [];
  guests = new Map();

  add(now_ms, vms) {
    this.at_ms.push(now_ms);
    for (const { name, size_bytes, target_bytes } of vms) {
      if (!this.guests.has(name)) this.guests.set(name, { size: [], target: [] });
      const columns = this.guests.get(name);
      for (const column of Object.values(columns)) while (column.length < this.at_ms.length - 1) column.push(null);
      columns.size.push(size_bytes);
      // A guest that does not run has no target.
      columns.target.push(size_bytes === null ? null : target_bytes || null);
    }
    const old = Math.max(0, this.at_ms.length - MOMENTS_MAX);
    const columns = [...this.guests.values()].flatMap((guest) => Object.values(guest));
    for (const column of [this.at_ms, ...columns]) column.splice(0, old);
  }
}

/** A row for each guest. */
export function guestRows(vms) {
  return vms.map((vm) => ({
    id: vm.name,
    title: vm.problem ?? vm.name,
    cells: [
      vm.name,
      vm.aim_bytes === null ? size(vm.size_bytes) : `${size(vm.size_bytes)} to ${bytes(vm.aim_bytes)}`,
      some(vm.target_bytes),
      bytes(vm.least_bytes),
      bytes(vm.most_bytes),
      size(vm.agent?.available_bytes),
      some(vm.wanted_bytes),
      some(vm.kept_bytes),
      vm.auto ? "on" : "off",
      vm.state,
    ],
    bad: vm.state === "out of reach" ? [9] : [],
  }));
}

export class Guests {
  /** Whether there are guests: then they are requested with each sample. */
  any = false;
  #board;
  #sizes = new Sizes();
  #run_ms = null;
  #to_ms = 0;
  #cursor_ms = null;
  #table = new Table(at("guests-list").querySelector("table"), "Guests");
  #legend = new Legend(at("guests-sizes").querySelector(".legend"), () => this.draw());
  #chart;
  #shown = [];

  constructor(board) {
    this.#board = board;
    const point = (time) => {
      this.#cursor_ms = time;
      this.draw();
    };
    this.#chart = new Chart(at("guests-sizes"), { format: bytes, ticks: byteTicks, point, read: (place) => this.#read(place) });
  }

  /** Shows what the daemon says; gives it. */
  async refresh() {
    const { sections, vms } = await get("/v1/vms");
    this.any = vms.length > 0;
    at("guests").hidden = !this.any;
    if (!this.any) return vms;
    // The daemon was restarted: drop the earlier samples.
    if (this.#run_ms !== this.#board.series.run_ms) this.#sizes = new Sizes();
    this.#run_ms = this.#board.series.run_ms;
    this.#sizes.add(Date.now(), vms);
    const { used_bytes, capacity_bytes, free_bytes, lent_bytes, section_bytes } = sections;
    const lent = lent_bytes > 0 ? ` of which ${bytes(lent_bytes)} are lent to the store` : "";
    const pool = `${bytes(used_bytes)} of ${bytes(capacity_bytes)} in use, ${bytes(free_bytes)} free${lent}`;
    write(at("guests-now"), `${pool}, in sections of ${bytes(section_bytes)} (${sections.backing}).`);
    const heads = ["Guest", "Size", "Target", "Least", "Most", "Available", "Needs", "Kept", "Auto", "State"];
    this.#table.show(heads, guestRows(vms));
    this.draw();
    return vms;
  }

  draw() {
    if (!this.any) return;
    const { at_ms, guests } = this.#sizes;
    if (!this.#board.paused || !this.#to_ms) this.#to_ms = at_ms.at(-1) ?? 0;
    const [from_ms, to_ms] = [this.#to_ms - this.#board.range_ms, this.#to_ms];
    const [begin, end] = [firstAfter(at_ms, from_ms - 1), firstAfter(at_ms, to_ms)];
    const found = this.#cursor_ms === null ? -1 : firstAfter(at_ms, this.#cursor_ms) - 1;
    const pointed = found < begin || found >= end ? -1 : found;
    const now = pointed < 0 ? end - 1 : pointed;
    const names = [...guests.keys()].sort().slice(0, LINES_MAX);
    const groups = names.map((name, look) => this.#group(name, guests.get(name), look, now));
    this.#legend.show(groups);
    const shown = groups.filter(({ id }) => !this.#legend.hidden.has(id));
    this.#shown = shown.flatMap(({ lines }) => lines);
    const labels = this.#shown.length > 0;
    this.#chart.draw({ times: at_ms, from_ms, to_ms, begin, end, at: pointed, lines: this.#shown, labels });
  }

  #group(name, columns, look, now) {
    const values = [
      { label: "size", text: size(columns.size[now]) },
      { label: "target", text: size(columns.target[now]) },
    ];
    const lines = [
      { look, label: name, values: columns.size, name: `${name} size` },
      { look, dashed: true, values: columns.target, name: `${name} target` },
    ];
    return { id: name, label: name, title: name, look: { look }, values, lines };
  }

  #read(place) {
    const time = this.#sizes.at_ms[place];
    if (time === undefined) return "no sizes yet";
    const values = this.#shown.filter(({ values: all }) => Number.isFinite(all[place]));
    return [clock(time), ...values.map(({ name, values: all }) => `${name} ${bytes(all[place])}`)].join(", ");
  }
}
