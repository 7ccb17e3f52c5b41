// What needs an operator, above everything else on the page, with links to where it is shown.

import { counted, duration } from "./format.js";
import { write } from "./legend.js";
import { isAway } from "./lending.js";

/** Most lines. */
const LINES_MAX = 6;
/** How long a failed request of a disk is told, seconds. */
const RECENT_S = 600;

const at = (id) => document.getElementById(id);

const because = (reason) => (reason ? `: ${reason}` : ".");

function ofLending({ role, helper, peers, devices }) {
  if (role === "off") return [];
  const lines = [];
  if (helper === "silent" || helper === "gone") {
    lines.push(`The process that swaps onto borrowed memory ${helper === "gone" ? "is gone" : "does not answer"}.`);
  }
  for (const { device, path, slabs_lost, slabs_unreachable } of devices) {
    const name = `Borrowed device ${path || device}`;
    if (slabs_lost) lines.push(`${name}: ${counted(slabs_lost, "slab")} lost.`);
    if (slabs_unreachable) lines.push(`${name}: ${counted(slabs_unreachable, "slab")} with no copy in reach.`);
  }
  const away = peers.filter(({ health }) => isAway(health));
  lines.push(...away.map(({ name, health, health_s, reason }) => `Host ${name} is ${health}, for ${duration(health_s)}${because(reason)}`));
  return lines.map((text) => ({ text, part: "lending" }));
}

const ofDisks = (disks) =>
  disks.flatMap(({ name, state, reason, last_error, last_error_s }) => {
    if (state === "refused") return [{ text: `Disk ${name}: its guest was refused${because(reason)}`, part: "disks" }];
    const isRecent = last_error && last_error_s < RECENT_S;
    return isRecent ? [{ text: `Disk ${name}: a request failed ${duration(last_error_s)} ago: ${last_error}`, part: "disks" }] : [];
  });

const ofGuests = (vms) =>
  vms.filter(({ state }) => state === "out of reach").map(({ name, problem }) => ({ text: `Guest ${name} is out of reach${because(problem)}`, part: "guests" }));

const ofStore = ({ disk }) => (disk?.trouble ? [{ text: `The store's disk takes no pages: ${disk.trouble}`, part: "tiers" }] : []);

/** The lines, each with the part of the page that shows more. */
export const troubles = ({ lending, disks, vms, store }) => [...ofStore(store), ...ofLending(lending), ...ofDisks(disks), ...ofGuests(vms)];

/** Shows the lines. Keeps the elements of those that stay in their place, so that a link keeps the focus. */
export function showTroubles(status) {
  const all = troubles(status);
  at("troubles").hidden = all.length === 0;
  const shown = all.slice(0, LINES_MAX);
  if (all.length > shown.length) shown.push({ text: `${all.length - shown.length} more.`, part: all.at(-1).part });
  const list = at("troubles").querySelector("ul");
  while (list.children.length > shown.length) list.lastElementChild.remove();
  shown.forEach(({ text, part }, place) => {
    if (!list.children[place]) list.append(document.createElement("li")), list.children[place].append(document.createElement("a"));
    const link = list.children[place].firstElementChild;
    link.href = `#${part}`;
    write(link, text);
  });
}
