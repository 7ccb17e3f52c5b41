// The page: follows the daemon's samples and shows them.

import { Lost, NoToken, get, takeTokenFromAddress, token } from "./api.js";
import { clock } from "./format.js";
import { Board } from "./board.js";
import { Disks } from "./disks.js";
import { Guests } from "./guests.js";
import { Lending } from "./lending.js";
import { PolicyForm } from "./policy.js";
import { Series } from "./series.js";
import { Title } from "./title.js";
import { showTroubles } from "./troubles.js";

/** Interval of requests for rarely changing state: caps, pools, devices, the policy. */
const DETAILS_MS = 5000;
/** The same while a client is known only from samples. */
const LEAST_MS = 900;
/** Longest interval of requests for samples, so that a lost daemon is noticed. */
const LOOK_MS = 5000;
/** Shortest interval: faster changes are not visible. */
const SOONEST_MS = 250;
const RETRY_MS = [1000, 2000, 4000, 8000, 15_000, 30_000];
const THEMES = ["auto", "light", "dark"];

const at = (id) => document.getElementById(id);
const series = new Series();
const board = new Board(series);
const lending = new Lending();
const guests = new Guests(board);
const disks = new Disks();
const title = new Title();
const policy = new PolicyForm((error) => failed(error));
let timer = 0;
let failures = 0;
let detailed_ms = -Infinity;
let busy = false;

function state(kind, text) {
  const shown = at("state");
  if (shown.dataset.kind === kind && shown.lastElementChild.textContent === text) return;
  shown.dataset.kind = kind;
  shown.lastElementChild.textContent = text;
}

function showState() {
  if (failures) state("lost", "Connection lost");
  else if (board.paused) state("paused", `Paused at ${clock(board.to_ms)}`);
  else state("live", `Live, every ${series.interval_ms / 1000} s`);
}

function later(time_ms) {
  clearTimeout(timer);
  timer = setTimeout(follow, time_ms);
}

/** Requests new samples, shows them, and schedules the next request. */
async function follow() {
  if (busy) return;
  busy = true;
  clearTimeout(timer);
  try {
    await sample();
    const age_ms = performance.now() - detailed_ms;
    if (age_ms >= DETAILS_MS || (age_ms >= LEAST_MS && board.hasStrangers())) await details();
    else if (guests.any) await guests.refresh();
    connected();
    later(Math.min(Math.max(series.interval_ms, SOONEST_MS), LOOK_MS));
  } catch (error) {
    failed(error);
  } finally {
    busy = false;
  }
}

async function sample() {
  let more = true;
  while (more) {
    const since = series.last;
    const answer = await get(`/v1/history?since=${since}`);
    // A restarted daemon numbers its samples from 1: request all of them again.
    more = !series.add(answer) || (answer.last < answer.newest && answer.last > since);
    if (series.last === 0) detailed_ms = -Infinity;
  }
}

async function details() {
  const [clients, pools, blocks, store] = await Promise.all(["/v1/clients", "/v1/pools", "/v1/blocks", "/v1/store"].map(get));
  board.details({ clients, pools, blocks });
  await title.refresh();
  await policy.refresh();
  const status = { store, disks: await disks.refresh(), lending: await lending.refresh(), vms: await guests.refresh() };
  showTroubles(status);
  showParts();
  detailed_ms = performance.now();
}

/** Links to the parts that this daemon has. */
function showParts() {
  for (const link of at("parts").querySelectorAll("a")) link.parentElement.hidden = document.querySelector(link.hash).hidden;
}

function connected() {
  failures = 0;
  at("lost").hidden = true;
  document.body.classList.remove("stale");
  enable(true);
  at("enter").hidden = true;
  at("board").hidden = false;
  at("controls").hidden = false;
  showState();
  board.draw();
}

/** Enables or disables what only a daemon that answers can do. */
function enable(isConnected) {
  at("pause").disabled = !isConnected;
  policy.enable(isConnected);
}

function failed(error) {
  if (error instanceof NoToken) return askForToken(token.get() !== null);
  if (!(error instanceof Lost)) console.error(error);
  lost();
}

/** Shows that the connection is lost, and when the next attempt is. */
function lost() {
  const wait_ms = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
  failures += 1;
  document.body.classList.add("stale");
  enable(false);
  const data = series.newest_ms ? ` This is as of ${clock(series.newest_ms)}.` : "";
  const line = `Connection lost.${data}`;
  if (at("lost-line").textContent !== line || at("lost").hidden) at("lost-line").textContent = line;
  at("lost").hidden = false;
  showState();
  countDown(performance.now() + wait_ms);
}

function countDown(end) {
  const left_s = Math.ceil((end - performance.now()) / 1000);
  at("lost-next").textContent = left_s > 0 ? `Next try in ${left_s} s.` : "Trying …";
  clearTimeout(timer);
  timer = left_s > 0 ? setTimeout(() => countDown(end), 250) : setTimeout(follow, 0);
}

function askForToken(wrong) {
  clearTimeout(timer);
  token.forget();
  at("lost").hidden = true;
  at("board").hidden = true;
  at("controls").hidden = true;
  at("daemon").hidden = true;
  at("enter").hidden = false;
  at("token-error").textContent = wrong ? "That is not the daemon's token." : "";
  state("waiting", "Waiting for a token");
  at("token").value = "";
  at("token").focus();
}

function theme(choice) {
  document.documentElement.dataset.theme = choice;
  at("theme").lastElementChild.textContent = choice;
  localStorage.setItem("spillway-theme", choice);
}

at("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(at("token").value.trim());
  follow();
});
at("filter").addEventListener("input", (event) => board.filter(event.target.value));
at("again").addEventListener("click", () => follow());
at("range").addEventListener("change", (event) => {
  board.range_ms = 1000 * Number(event.target.value);
  board.draw();
  guests.draw();
});
at("pause").addEventListener("click", () => {
  board.pause(!board.paused);
  at("pause").setAttribute("aria-pressed", String(board.paused));
  showState();
});
at("theme").addEventListener("click", () => {
  theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
addEventListener("hashchange", () => takeTokenFromAddress() && follow());
// A hidden tab may have been suspended.
document.addEventListener("visibilitychange", () => !document.hidden && token.get() && follow());

const chosen = localStorage.getItem("spillway-theme");
theme(THEMES.includes(chosen) ? chosen : "auto");
takeTokenFromAddress();
if (token.get()) follow();
else askForToken(false);
