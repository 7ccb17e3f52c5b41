// The daemon's samples by column: an array for each figure, all of the same length.

/** Most samples that are kept. */
const SAMPLES_MAX = 3600;
const STORE = ["total_pages", "memory_bytes", "free_frame_bytes", "disk_bytes", "same_filled_pages", "compressed_pages"];
const COUNTS = ["puts", "refused_at_target", "refused_node_full", "hits", "misses"];
const CLIENT = ["used_pages", "target_pages", ...COUNTS];

const TOTALS = ["used_pages", ...COUNTS];

const columns = (names, length) => Object.fromEntries(names.map((name) => [name, Array(length).fill(null)]));

export class Series {
  constructor() {
    this.clear(null);
  }

  clear(run_ms) {
    this.run_ms = run_ms;
    this.last = 0;
    this.at_ms = [];
    this.elapsed_ms = [];
    this.store = columns(STORE, 0);
    /** By name; null while a client did not exist. A target without a limit is Infinity. */
    this.clients = new Map();
    /** Names of paged programs. Their pages are local frames, so they do not count in the store's totals. */
    this.programs = new Set();
    this.totals = columns(TOTALS, 0);
    this.capacity_bytes = 0;
    this.interval_ms = 1000;
  }

  /** Adds an answer of /v1/history. Returns false if it is another run's: then request it from the start. */
  add(answer) {
    if (this.run_ms !== answer.run_ms) {
      const fresh = this.run_ms === null;
      this.clear(answer.run_ms);
      if (!fresh) return false;
    }
    this.capacity_bytes = answer.capacity_bytes;
    this.interval_ms = answer.interval_ms;
    this.last = answer.last;
    const before = this.at_ms.length;
    this.at_ms.push(...answer.at_ms);
    this.elapsed_ms.push(...answer.elapsed_ms);
    for (const name of STORE) this.store[name].push(...answer.store[name]);
    for (const name of TOTALS) this.totals[name].push(...answer.at_ms.map(() => 0));
    for (const client of answer.clients) this.#addClient(client, before);
    this.#level();
    return true;
  }

  #addClient(client, before) {
    if (!this.clients.has(client.name)) this.clients.set(client.name, columns(CLIENT, before));
    const known = this.clients.get(client.name);
    if (client.program) this.programs.add(client.name);
    for (const name of CLIENT) {
      const column = known[name];
      while (column.length < before + client.first) column.push(null);
      const values = name === "target_pages" ? client[name].map((it) => it ?? Infinity) : client[name];
      column.push(...values);
      const total = client.program ? null : this.totals[name];
      if (total) values.forEach((value, at) => (total[before + client.first + at] += value));
    }
  }

  /** Extends all columns to the same length, and drops old samples and the clients without others. */
  #level() {
    const length = this.at_ms.length;
    const old = Math.max(0, length - SAMPLES_MAX);
    for (const column of [this.at_ms, this.elapsed_ms, ...Object.values(this.store), ...Object.values(this.totals)]) {
      column.splice(0, old);
    }
    for (const [name, client] of this.clients) {
      for (const column of Object.values(client)) {
        while (column.length < length) column.push(null);
        column.splice(0, old);
      }
      if (old && client.used_pages.every((used) => used === null)) {
        this.clients.delete(name);
        this.programs.delete(name);
      }
    }
  }

  get newest_ms() {
    return this.at_ms.at(-1) ?? 0;
  }

  /** The indexes of the samples from one time to another, end excluded. */
  within(from_ms, to_ms) {
    return [firstAfter(this.at_ms, from_ms - 1), firstAfter(this.at_ms, to_ms)];
  }

  /** Counts of a client, or of all, per second; null while it did not exist. */
  rates(of, name) {
    return of[name].map((value, at) => (value === null ? null : this.#perSecond(value, at)));
  }

  /** A count at an index, per second. */
  rate(of, name, at) {
    return this.#perSecond(of[name][at] ?? 0, at);
  }

  #perSecond(value, at) {
    return this.elapsed_ms[at] > 0 ? (value * 1000) / this.elapsed_ms[at] : 0;
  }
}

/** The first index whose time is later. */
export function firstAfter(times, time) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The index from `begin` to `end` with the nearest time; -1 if there is none. */
export function nearest(times, time, begin, end) {
  if (begin >= end) return -1;
  const after = Math.min(Math.max(firstAfter(times, time), begin), end - 1);
  const before = Math.max(after - 1, begin);
  return time - times[before] <= times[after] - time ? before : after;
}

/** Indexes to draw: all, or the lowest and highest of each of `buckets` parts if there are too many. */
export function thin(values, begin, end, buckets) {
  const size = Math.ceil((end - begin) / buckets);
  const places = [];
  for (let start = begin; start < end; start += size) {
    const stop = Math.min(start + size, end);
    if (size <= 2) {
      for (let at = start; at < stop; at += 1) places.push(at);
      continue;
    }
    let [low, high, gap] = [-1, -1, -1];
    for (let at = start; at < stop; at += 1) {
      if (!Number.isFinite(values[at])) {
        gap = at;
        continue;
      }
      if (low < 0 || values[at] < values[low]) low = at;
      if (high < 0 || values[at] > values[high]) high = at;
    }
    const found = [...new Set([low, high, gap])].filter((at) => at >= 0);
    places.push(...found.sort((a, b) => a - b));
  }
  return places;
}
