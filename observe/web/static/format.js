// Formats numbers with their units, and computes an axis's grid lines.

export const PAGE_BYTES = 4096;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Three significant digits. */
function short(number) {
  if (number === 0) return "0";
  const digits = number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return number.toFixed(digits).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");
}

/** Bytes in the unit that leaves a number below 1024; 0 is in MiB, the most frequent unit. */
export function bytes(count) {
  if (!count) return "0 MiB";
  let unit = 0;
  let number = count;
  while (Number(short(number)) >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${short(number)} ${UNITS[unit]}`;
}

export const pages = (count) => bytes(count * PAGE_BYTES);

/** A limit in pages; null means no limit. */
export const limit = (count) => (count === null ? "no limit" : pages(count));

/** A count, with k, M or G if it is long. */
export function count(number) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (number >= size) return `${short(number / (letter === "k" ? 1e3 : size))} ${letter}`;
  }
  return number >= 1000 ? Math.round(number).toString() : short(number);
}

/** A count with what is counted. */
export const counted = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

export const rate = (number) => `${count(number)}/s`;

export const percent = (part, whole) => (whole > 0 ? `${short((100 * part) / whole)} %` : "–");

const two = (number) => String(number).padStart(2, "0");

/** The time of day, with seconds unless `coarse`. */
export function clock(at_ms, coarse = false) {
  const time = new Date(at_ms);
  const text = `${two(time.getHours())}:${two(time.getMinutes())}`;
  return coarse ? text : `${text}:${two(time.getSeconds())}`;
}

/** Grid lines from 0 to at least `most`: about four, at multiples of one of `steps` times a power of `base`. */
function ticks(most, base, steps) {
  const rough = Math.max(most, 1) / 4;
  let power = 1;
  while (power * base <= rough) power *= base;
  const step = steps.map((factor) => factor * power).find((size) => size >= rough) ?? power * base;
  const lines = [];
  for (let at = 0; lines.length < 2 || lines.at(-1) < most; at += step) lines.push(at);
  return lines;
}

export const byteTicks = (most) => ticks(Math.max(most, 1 << 20), 1024, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
export const countTicks = (most) => ticks(most, 10, [1, 2, 5]);

/** Shortens names to the part after their last colon, if these parts differ. */
export function shortNames(names) {
  const tails = names.map((name) => name.slice(name.lastIndexOf(":") + 1));
  const times = new Map();
  for (const tail of tails) times.set(tail, (times.get(tail) ?? 0) + 1);
  const shorter = (name, tail) => (tail && times.get(tail) === 1 ? tail : name);
  return new Map(names.map((name, at) => [name, shorter(name, tails[at])]));
}

/** A duration in its two largest units. */
export function duration(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

/** Shortens a text in its middle until `width` of it is at most `room`; names differ more often at their ends. */
export function fit(text, room, width) {
  if (width(text) <= room) return text;
  const letters = [...text];
  for (let kept = letters.length - 1; kept > 1; kept -= 1) {
    const end = Math.ceil(kept / 2);
    const short = `${letters.slice(0, kept - end).join("")}…${letters.slice(-end).join("")}`;
    if (width(short) <= room) return short;
  }
  return "…";
}
