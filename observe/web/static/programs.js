// Paged programs in their own terms: local memory, faults, and pages that leave and come back.

import { limit, pages, rate } from "./format.js";

export const PROGRAM_HEADS = ["Name", "Local", "Target", "Cap", "Faults", "First touches", "Fetched again", "Evicted so far"];

/**
 * A program's cells, and their values. In its samples, a put is a page that needs a frame, a refused put or a miss one that was
 * evicted before, and hits and misses together are its faults. `known` are its details, undefined before they are there.
 */
export function programRow(name, series, known, last) {
  const program = series.clients.get(name);
  const perSecond = (kind) => series.rate(program, kind, last);
  const [used, target, fetched] = [program.used_pages[last], program.target_pages[last], perSecond("misses")];
  const faults = perSecond("hits") + fetched;
  const touches = Math.max(0, perSecond("puts") - perSecond("refused_at_target"));
  const [cap, evicted] = known ? [known.cap_pages, known.statistics.evicted_pages] : [-1, -1];
  return {
    cells: [
      name,
      pages(used),
      target === Infinity ? "no limit" : pages(target),
      known ? limit(cap) : "–",
      rate(faults),
      rate(touches),
      rate(fetched),
      known ? pages(evicted) : "–",
    ],
    values: [name, used, target, cap ?? Infinity, faults, touches, fetched, evicted],
  };
}
