// The title row: which daemon this is.

import { get } from "./api.js";
import { duration } from "./format.js";
import { write } from "./legend.js";

const at = (id) => document.getElementById(id);

/** What the row says about a daemon: its host first, and last what changes. */
export function facts({ host, version, commit }, { memory_locked, restarts, uptime_seconds }) {
  return [
    host || "unnamed host",
    commit ? `${version} (${commit.slice(0, 8)})` : version,
    memory_locked ? "memory locked" : "memory not locked",
    `${restarts} ${restarts === 1 ? "restart" : "restarts"}`,
    `up ${duration(uptime_seconds)}`,
  ];
}

export class Title {
  async refresh() {
    const [version, health] = await Promise.all(["/v1/version", "/v1/health"].map(get));
    const shown = facts(version, health);
    const list = at("daemon");
    if (!list.childElementCount) list.append(...shown.map(() => document.createElement("li")));
    shown.forEach((text, place) => write(list.children[place], text));
    list.hidden = false;
    document.title = `${shown[0]} – Spillway`;
  }
}
