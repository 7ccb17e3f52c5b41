// The page's content once the daemon answers: figures, charts, tables.

import { Chart } from "./chart.js";
import { byteTicks, bytes, clock, count, counted, countTicks, limit, pages, percent, rate, shortNames, PAGE_BYTES } from "./format.js";
import { Legend, swatch, write } from "./legend.js";
import { PROGRAM_HEADS, programRow } from "./programs.js";
import { firstAfter } from "./series.js";
import { ROWS_MAX, Table } from "./tables.js";

/** Most clients with a line: the number of line styles. */
const LINES_MAX = 8;
/** Most rows of a chart's table. */
const TIMES_MAX = 12;
/** The columns of used and local memory, and of what a pool holds. */
const USED = 1;
const HOLDS = 3;

const at = (id) => document.getElementById(id);
const scaled = (values) => values.map((value) => (value === null ? null : value * PAGE_BYTES));

export class Board {
  range_ms = 60_000;
  paused = false;
  to_ms = 0;
  #cursor_ms = null;
  #looks = new Map();
  #known = { clients: [], pools: [], blocks: [] };
  #charts = [];
  #filter = "";

  constructor(series) {
    this.series = series;
    this.#charts = [
      this.#chart("memory", "Memory of each client", bytes, byteTicks, () => this.#memory()),
      this.#chart("refusals", "Refused puts", rate, countTicks, () => this.#refusals()),
      this.#chart("gets", "Gets", rate, countTicks, () => this.#gets()),
    ];
    const table = (id, caption) => new Table(at(id).querySelector("table"), caption);
    this.tables = { clients: table("clients", "Clients"), programs: table("programs", "Paged programs"), pools: table("pools", "Pools"), blocks: table("blocks", "Block devices") };
  }

  #chart(id, title, format, ticks, groups) {
    const figure = at(id);
    const legend = new Legend(figure.querySelector(".legend"), () => this.draw());
    const point = (time) => {
      if (this.#cursor_ms === time) return;
      this.#cursor_ms = time;
      this.draw();
    };
    const part = { legend, groups, format, table: new Table(figure.querySelector("table"), title), details: figure.querySelector("details") };
    part.chart = new Chart(figure, { format, ticks, point, read: (place) => this.#read(part, place) });
    part.details.addEventListener("toggle", () => this.draw());
    return part;
  }

  details(known) {
    this.#known = known;
  }

  /** Shows only clients and programs whose names contain a text, in any case. */
  filter(text) {
    this.#filter = text.trim().toLowerCase();
    // The largest of those that are left get the lines.
    this.#looks.clear();
    this.draw();
  }

  #matches(name) {
    return name.toLowerCase().includes(this.#filter);
  }

  /** Whether any present client has no details yet. */
  hasStrangers() {
    const known = new Set(this.#known.clients.map((client) => client.name));
    const there = ([name, client]) => client.used_pages.at(-1) !== null && !known.has(name);
    return [...this.series.clients].some(there);
  }

  /** Freezes the page, or continues with the present samples. */
  pause(paused) {
    this.paused = paused;
    this.draw();
  }

  draw() {
    const { series } = this;
    if (!this.paused || !this.to_ms) this.to_ms = series.newest_ms;
    const from_ms = this.to_ms - this.range_ms;
    const [begin, end] = series.within(from_ms, this.to_ms);
    if (this.#cursor_ms !== null && this.#cursor_ms < from_ms) this.#cursor_ms = null;
    const found = this.#cursor_ms === null ? -1 : firstAfter(series.at_ms, this.#cursor_ms) - 1;
    this.view = { times: series.at_ms, from_ms, to_ms: this.to_ms, begin, end, at: found < begin ? -1 : found };
    this.now = this.view.at < 0 ? end - 1 : this.view.at;
    this.#giveLooks();
    for (const part of this.#charts) this.#drawChart(part);
    at("empty").hidden = series.clients.size > 0 || this.#known.clients.length > 0 || series.newest_ms === 0;
    this.#figures(end - 1);
    this.#clients(end - 1);
    this.#programs(end - 1);
    this.#pools();
  }

  /** Clients with a line keep its style. The others get a free style, the largest clients first. */
  #giveLooks() {
    const { begin, end } = this.view;
    const there = (name) => this.#matches(name) && this.series.clients.get(name)?.used_pages.slice(begin, end).some((used) => used !== null);
    for (const name of this.#looks.keys()) if (!there(name)) this.#looks.delete(name);
    const free = [...Array(LINES_MAX).keys()].filter((look) => ![...this.#looks.values()].includes(look));
    if (free.length) {
      const most = (name) => Math.max(0, ...this.series.clients.get(name).used_pages.slice(begin, end));
      const waiting = [...this.series.clients.keys()].filter((name) => !this.#looks.has(name) && there(name));
      const sizes = new Map(waiting.map((name) => [name, most(name)]));
      waiting.sort((a, b) => (waiting.length > free.length && sizes.get(b) - sizes.get(a)) || (a < b ? -1 : 1));
      for (const name of waiting.slice(0, free.length)) this.#looks.set(name, free.shift());
    }
    const others = [...this.series.clients.keys()].filter(there).length - this.#looks.size;
    write(at("more"), others > 0 ? `${others} more without a line.` : "");
    this.short = shortNames([...this.series.clients.keys()]);
  }

  #memory() {
    const { now } = this;
    const names = [...this.#looks.keys()].sort();
    const groups = names.map((name) => {
      const client = this.series.clients.get(name);
      const [look, label] = [this.#looks.get(name), this.short.get(name)];
      const [used, target] = [client.used_pages[now] ?? null, client.target_pages[now] ?? null];
      return {
        id: name,
        label,
        title: name,
        look: { look },
        values: [
          { label: this.series.programs.has(name) ? "local" : "used", text: used === null ? "–" : pages(used) },
          { label: "target", text: target === null ? "–" : target === Infinity ? "none" : pages(target) },
        ],
        lines: [
          { look, label, values: scaled(client.used_pages), name: `${label} used` },
          { look, dashed: true, values: scaled(client.target_pages), name: `${label} target` },
        ],
      };
    });
    const total = scaled(this.series.store.total_pages);
    const room = { id: "", label: "Room for all", title: "What there is for clients, as pages are packed now", look: { limit: true } };
    room.values = [{ label: "", text: total[now] === undefined ? "–" : bytes(total[now]) }];
    room.lines = [{ limit: true, label: "room", values: total, name: "Room for all" }];
    return [...groups, room];
  }

  #lines(kinds) {
    return kinds.map(({ id, label, look, dashed }) => {
      const values = this.series.rates(this.series.totals, id);
      const line = { look, dashed, marked: true, label, values, name: label };
      const text = values[this.now] === undefined ? "–" : rate(values[this.now]);
      return { id, label, look: line, values: [{ label: "", text }], lines: [line] };
    });
  }

  #refusals() {
    return this.#lines([
      { id: "refused_at_target", label: "At target", look: 1 },
      { id: "refused_node_full", label: "Store full", look: 5, dashed: true },
    ]);
  }

  #gets() {
    return this.#lines([
      { id: "hits", label: "Hits", look: 2 },
      { id: "misses", label: "Misses", look: 3, dashed: true },
    ]);
  }

  #drawChart(part) {
    const groups = part.groups();
    part.shown = groups.filter((group) => !part.legend.hidden.has(group.id)).flatMap((group) => group.lines);
    part.legend.show(groups);
    part.chart.draw({ ...this.view, lines: part.shown, labels: part.shown.length > 0 });
    if (part.details.open) this.#times(part);
  }

  #read(part, place) {
    const time = this.view.times[place];
    if (time === undefined) return "no samples yet";
    const values = part.shown.filter(({ values }) => Number.isFinite(values[place]));
    return [clock(time), ...values.map(({ name, values: all }) => `${name} ${part.format(all[place])}`)].join(", ");
  }

  /** The chart's values as a table, the newest first. */
  #times(part) {
    const { times, begin, end } = this.view;
    const step = Math.max(1, Math.ceil((end - begin) / TIMES_MAX));
    const rows = [];
    for (let place = end - 1; place >= begin; place -= step) {
      const cells = part.shown.map(({ values }) => (Number.isFinite(values[place]) ? part.format(values[place]) : "–"));
      rows.push({ id: (end - 1 - place) / step, cells: [clock(times[place]), ...cells] });
    }
    part.table.show(["Time", ...part.shown.map(({ name }) => name)], rows);
  }

  #figures(last) {
    const { series } = this;
    const { store, totals, capacity_bytes } = series;
    if (last < 0) return;
    const [memory, spare] = [store.memory_bytes[last], store.free_frame_bytes[last]];
    const taken = Math.max(0, memory - spare);
    write(at("taken"), bytes(taken));
    write(at("taken-of"), `of ${bytes(capacity_bytes)}, ${percent(taken, capacity_bytes)}`);
    const there = ([name, client]) => client.used_pages[last] !== null && !series.programs.has(name);
    const names = [...series.clients].filter(there).length;
    write(at("held"), pages(totals.used_pages[last]));
    write(at("held-by"), `in ${counted(names, "client")}, room for ${pages(store.total_pages[last])}`);
    const [at_target, full] = ["refused_at_target", "refused_node_full"].map((name) => series.rate(totals, name, last));
    write(at("refused"), rate(at_target + full));
    write(at("refused-of"), `of ${rate(series.rate(totals, "puts", last))} puts`);
    const [hits, misses] = ["hits", "misses"].map((name) => this.#sum(totals[name]));
    write(at("hit"), percent(hits, hits + misses));
    write(at("hit-of"), `of ${count(hits + misses)} in ${this.#rangeName()}`);
    this.#tiers(last, taken, spare);
  }

  #sum(values) {
    return values.slice(this.view.begin, this.view.end).reduce((sum, value) => sum + value, 0);
  }

  #rangeName() {
    return this.range_ms >= 3_600_000 ? "1 h" : `${this.range_ms / 60_000} min`;
  }

  #tiers(last, taken, spare) {
    const { store, capacity_bytes } = this.series;
    const share = (part) => `${capacity_bytes ? Math.min(100, (100 * part) / capacity_bytes) : 0}%`;
    const [first, second] = at("tiers").querySelectorAll(".bar span");
    first.style.width = share(taken);
    second.style.width = share(spare);
    const [packed, same] = [store.compressed_pages[last], store.same_filled_pages[last]];
    const rows = [
      ["Memory in use", bytes(taken), `of ${bytes(capacity_bytes)}`],
      ["Free or set aside", bytes(spare), "ready for the next put"],
      ["Compressed", pages(packed), `${counted(packed, "page")}, at full size`],
      ["Same-filled", pages(same), `${counted(same, "page")} without memory of ${same === 1 ? "its" : "their"} own`],
      ["Disk", bytes(store.disk_bytes[last]), counted(store.disk_bytes[last] / PAGE_BYTES, "page")],
    ];
    const list = at("tiers").querySelector("dl");
    if (!list.childElementCount) {
      list.append(...rows.flatMap(() => ["dt", "dd", "dd"].map((tag) => document.createElement(tag))));
    }
    rows.flat().forEach((text, place) => write(list.children[place], text));
  }

  /** Present clients or programs: how many there are, and the names that the filter leaves. */
  #present(last, programs) {
    const isThere = ([name, { used_pages }]) => (used_pages[last] ?? null) !== null && this.series.programs.has(name) === programs;
    const all = [...this.series.clients].filter(isThere).map(([name]) => name);
    return { all: all.length, names: all.filter((name) => this.#matches(name)).sort() };
  }

  #details() {
    return new Map(this.#known.clients.map((client) => [client.name, client]));
  }

  #clients(last) {
    const known = this.#details();
    const { all, names } = this.#present(last, false);
    const rows = names.map((name) => this.#client(name, known.get(name), last));
    const heads = ["Name", "Used", "Target", "Cap", "Debt", "Puts", "Refused", `Hits, ${this.#rangeName()}`];
    const left = this.tables.clients.show(heads, rows, USED);
    write(at("filtered"), `${this.#filter ? `${rows.length} of ` : ""}${counted(all, "client")}`);
    write(at("clients").querySelector(":scope > p"), rest(left, all ? "No name has that." : "None yet.", rows.length));
  }

  #programs(last) {
    const known = this.#details();
    const { all, names } = this.#present(last, true);
    at("programs").hidden = all === 0;
    const rows = names.map((name) => ({ id: name, title: name, mark: this.#mark(name), ...programRow(name, this.series, known.get(name), last) }));
    const left = this.tables.programs.show(PROGRAM_HEADS, rows, USED);
    write(at("programs").querySelector(".note"), rest(left, "No name has that.", rows.length));
  }

  #mark(name) {
    const look = this.#looks.get(name);
    return look === undefined ? undefined : { key: String(look), make: () => swatch({ look }) };
  }

  #client(name, known, last) {
    const { series } = this;
    const client = series.clients.get(name);
    const [used, target] = [client.used_pages[last], client.target_pages[last]];
    const [puts, at_target, full] = ["puts", "refused_at_target", "refused_node_full"].map((kind) => series.rate(client, kind, last));
    const [hits, misses] = [this.#sum(client.hits), this.#sum(client.misses)];
    const [debt, gets] = [Math.max(0, used - target), hits + misses];
    const cap = known ? limit(known.cap_pages) : "–";
    return {
      id: name,
      title: name,
      mark: this.#mark(name),
      cells: [name, pages(used), target === Infinity ? "no limit" : pages(target), cap, pages(debt), rate(puts), rate(at_target + full), percent(hits, gets)],
      values: [name, used, target, known ? (known.cap_pages ?? Infinity) : -1, debt, puts, at_target + full, gets ? hits / gets : -1],
    };
  }

  #pools() {
    const { pools, blocks } = this.#known;
    const kind = (pool) => (pool.block ? `block device ${pool.block}` : `${pool.lifetime}${pool.uuid ? ", shared" : ""}`);
    const foundPools = pools.filter((pool) => this.#matches(pool.client));
    const poolRows = foundPools.map((pool) => ({
      id: `${pool.number} ${pool.client}`,
      cells: [String(pool.number), pool.client, kind(pool), pages(pool.pages), pages(pool.reserved_pages)],
      values: [String(pool.number).padStart(12, "0"), pool.client, kind(pool), pool.pages, pool.reserved_pages],
    }));
    const leftPools = this.tables.pools.show(["Pool", "Client", "Kind", "Holds", "Set aside"], poolRows, HOLDS);
    const noPool = pools.length ? "No client's name has that." : "None yet.";
    write(at("pools").querySelector("p"), rest(leftPools, noPool, poolRows.length));
    const foundBlocks = blocks.filter((block) => this.#matches(block.client));
    const blockRows = foundBlocks.map((block) => ({
      id: block.name,
      cells: [block.name, block.client, bytes(block.bytes), `${block.block_bytes} B`, String(block.opened)],
    }));
    const leftBlocks = this.tables.blocks.show(["Device", "Client", "Size", "Block", "Open"], blockRows);
    const noBlock = blocks.length ? "No client's name has that." : "None. spillway pool create --client NAME --block 1G --name DEVICE makes one.";
    write(at("blocks").querySelector("p"), rest(leftBlocks, noBlock, blockRows.length));
  }
}

/** A line under a table: how many rows are left out, or why there are none. */
function rest(left, none, rows) {
  if (left > 0) return `${left} more are not in this table, which has at most ${ROWS_MAX} rows. A part of a name above finds them; spillway stat shows all.`;
  return rows ? "" : none;
}
