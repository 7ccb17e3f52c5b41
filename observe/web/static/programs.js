// Paged programs in their own terms: local memory, faults, and pages that leave and come back.

import { limit, pages, rate } from "./format.js";

export const PROGRAM_HEADS = ["Name", "Local", "Target", "Cap", "Faults", "First touches", "Fetched again", "Evicted so far"];

/**
 * A program's cells. In its samples, a put is a page that needs a frame, a refused put or a miss one that was evicted
 * before, and hits and misses together are its faults. `known` are its details, undefined before they are there.
 */
export function programCells(name, series, known, last) {
  const program = series.clients.get(name);
  const perSecond = (kind) => series.rate(program, kind, last);
  const target = program.target_pages[last];
  return [
    name,
    pages(program.used_pages[last]),
    target === Infinity ? "no limit" : pages(target),
    known ? limit(known.cap_pages) : "–",
    rate(perSecond("hits") + perSecond("misses")),
    rate(Math.max(0, perSecond("puts") - perSecond("refused_at_target"))),
    rate(perSecond("misses")),
    known ? pages(known.statistics.evicted_pages) : "–",
  ];
}
