// Functions that all pages use: elements, times, requests, the bar on top, links to Airflow's pages, and the theme.

export const base = document.querySelector("meta[name=taskhub-base]").content;
export const query = new URLSearchParams(location.search);

const KIND = { Running: "run", Completed: "ok", Failed: "bad", Suspended: "wait", Terminated: "off", Canceled: "off" };

/** Create an HTML element. Children are elements or texts, never HTML, so that data of a hub cannot become markup. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const status = (name) => el("span", { class: `s ${KIND[name] ?? ""}` }, el("i", { "aria-hidden": "true" }), name);

export function chip(text, count, pressed, onclick) {
  return el("button", { class: "chip", "aria-pressed": String(pressed), "data-key": `chip ${text}`, onclick }, text, " ", el("b", {}, count.toLocaleString("en")));
}

/** Rows of a table that has no data yet. */
export function ghosts(rows, widths) {
  return Array.from({ length: rows }, () => el("tr", { class: "ghost" }, widths.map((width) => el("td", {}, el("i", { style: `width:${width}px` })))));
}

/** Draw again, and give the focus back to the element with the same data-key, so that the keyboard can be used. */
export function keepFocus(draw) {
  const key = document.activeElement?.dataset?.key;
  draw();
  if (key && document.activeElement?.dataset?.key !== key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/**
 * Draw the content of an element again, and keep what the reader does in it: the focus, open details, scrolled texts and
 * marked text. Details and texts are found again by their data-key. Content that has not changed is not touched.
 */
export function redraw(place, ...nodes) {
  const fresh = el("div", {}, ...nodes), find = (root, one) => root.querySelector(`[data-key="${CSS.escape(one.dataset.key)}"]`);
  for (const one of place.querySelectorAll("details[open][data-key]")) find(fresh, one)?.setAttribute("open", "");
  if (fresh.innerHTML === place.innerHTML) return;
  // a log stays at its end if it was shown to its end, so that a person sees it grow
  const atEnd = (one) => one.dataset.key.startsWith("log ") && one.scrollHeight - one.scrollTop - one.clientHeight < 4;
  const scrolled = [...place.querySelectorAll("pre[data-key]")].map((one) => [one, atEnd(one) ? Infinity : one.scrollTop]);
  keepFocus(() => place.replaceChildren(...fresh.childNodes));
  for (const [one, top] of scrolled) { const there = find(place, one); if (there) there.scrollTop = Math.min(top, there.scrollHeight); }
}

// --- times, in the time zone of the browser

const clock = new Intl.DateTimeFormat("sv-SE", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("sv-SE", { month: "2-digit", day: "2-digit" });
const full = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "long" });

export const fullTime = (ms) => (ms == null ? "" : full.format(ms));
export const exactTime = (ms) => (ms == null ? "" : `${clock.format(ms)}.${String(Math.floor(ms % 1000)).padStart(3, "0")}`);

export function time(ms) {
  if (ms == null) return el("span", { class: "mute" }, "–");
  const today = new Date().toDateString() === new Date(ms).toDateString();
  return el("time", { title: fullTime(ms) }, today ? clock.format(ms) : `${day.format(ms)} ${clock.format(ms)}`);
}

export function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Format a JSON text for people: short values stand on one line. */
export function pretty(text) {
  try {
    const value = JSON.parse(text), line = JSON.stringify(value);
    return line.length <= 72 ? line : JSON.stringify(value, null, 2);
  } catch { return text; }
}

/** Return a worker's name without the id of its incarnation. The tooltips show the whole name. */
export const worker = (name) => (name ?? "").replace(/-[0-9a-f]{8,}$/, "");

// --- requests

export class Refused extends Error {
  constructor(code, text) { super(text); this.code = code; }
}

export function ask(path, parameters = {}) {
  const url = new URL(`${base}/taskhub/api/${path}`, location.origin);
  for (const [name, value] of Object.entries(parameters)) if (value !== "" && value != null) url.searchParams.set(name, value);
  return answerOf(url, {});
}

/** Send an order. The server takes orders only as JSON, because other web sites cannot send JSON in the user's name. */
export function send(path, order) {
  return answerOf(`${base}/taskhub/api/${path}`, { method: "POST", body: JSON.stringify(order) }, { "Content-Type": "application/json" });
}

async function answerOf(url, request, headers = {}) {
  const answer = await fetch(url, { ...request, headers: { Accept: "application/json", ...headers } });
  if (answer.ok) return answer.json();
  let text = "";
  try { const { detail } = await answer.json(); text = typeof detail === "string" ? detail : JSON.stringify(detail); } catch { /* no JSON */ }
  throw new Refused(answer.status, text || answer.statusText);
}

/** Keep the filters of a page in its address, without those that have no value. */
export function keepQuery(filter) {
  history.replaceState({}, "", `${location.pathname}?${new URLSearchParams(Object.entries(filter).filter(([, value]) => value))}`);
  // Airflow copies the address of its frame into its own address only when the frame loads
  try { window.frameElement?.dispatchEvent(new Event("load")); } catch { /* Airflow's window has another origin */ }
}

let health = { asked: -Infinity, text: "" };

/** Return a text if no Airflow triggerer is alive; else "". Without a triggerer a deferred task never continues. */
export async function triggererTrouble() {
  if (Date.now() - health.asked < 15000) return health.text;
  health = { asked: Date.now(), text: health.text };
  try {
    const answer = await fetch(`${base}/api/v2/monitor/health`, { headers: { Accept: "application/json" } });
    const triggerer = answer.ok ? (await answer.json()).triggerer : null;
    health.text = triggerer && triggerer.status !== "healthy" ? "No triggerer of Airflow is alive: deferred tasks do not continue, even if their instances end. Start one: airflow triggerer" : "";
  } catch { /* nothing is known about the triggerer */ }
  return health.text;
}

export function trouble(error) {
  const texts = {
    401: ["You are not logged in", "Log in to Airflow, then load this page again."],
    403: ["You may not see this", error.message],
    404: ["Not found", error.message],
    409: ["This hub cannot be shown", error.message],
    503: ["The hub does not answer", error.message],
  };
  const [title, text] = texts[error.code] ?? ["The page cannot be loaded", error.message];
  return el("div", { class: "empty", role: "alert" }, el("b", {}, title), text);
}

/** Load and show the data repeatedly while the page is visible. After an error the pauses grow, and the old data stays. */
export function refresh(load, show, failed) {
  let pause = 2000, timer = 0, running = false;
  const turn = async () => {
    clearTimeout(timer);
    if (running) return;
    running = true;
    try { show(await load()); pause = 2000; stale(null); } catch (error) {
      if (failed(error)) return;
      stale(error);
      pause = Math.min(30000, pause * 2);
    } finally { running = false; }
    timer = setTimeout(() => (document.hidden ? (timer = 0) : turn()), pause);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !timer) turn(); });
  turn();
  return turn;
}

/** Refresh a table. If it cannot be loaded for the first time, or must not be shown any more, the error takes `place`. */
export function refreshTable(load, show, body, place) {
  return refresh(load, show, (error) => {
    if (!body.querySelector(".ghost") && (!error.code || error.code >= 500)) return false;
    place.replaceChildren(trouble(error));
    return true;
  });
}

// --- partitions

export const PARTITION_STATES = {
  live: "The owner renews the lease.", silent: "The owner does not renew the lease: the worker is dead, paused or cut off from the store.",
  unproven: "The page does not know yet whether the owner renews the lease.", kicked: "The owner has handed the partition over, and no worker has taken it yet.",
  released: "The owner gave the partition up, and no worker has taken it yet.", new: "No worker has served the partition yet.",
  offline: "No worker serves the partition, because an administrator ordered so.", missing: "The partition has no lease row: run taskhub partitions create",
};

// --- the bar on top

const TABS = [["instances", "Instances"], ["partitions", "Partitions"], ["workers", "Workers"], ["limits", "Limits"], ["quarantine", "Quarantine"]];
let updated = 0, place = null, wrong = null;

export function bar(answer) {
  updated = Date.now();
  place = answer;
  paint();
}

function stale(error) { wrong = error; paint(); }

function paint() {
  const where = place && [" hub ", el("b", {}, place.hub), ` · ${place.place} · `];
  const age = Math.round((Date.now() - updated) / 1000);
  const when = wrong ? el("span", { class: "stale", title: wrong.message }, `no answer for ${age} s`) : `updated ${age < 2 ? "now" : `${age} s ago`}`;
  const of = place?.conn ? `?conn=${encodeURIComponent(place.conn)}` : "";
  const here = location.pathname.replace(/.*\//, "").replace(/^instance$/, "instances");
  const tabs = TABS.map(([page, name]) => el("a", { href: `${base}/taskhub/page/${page}${of}`, "data-key": `tab ${page}`, class: page === here ? "here" : "", "aria-current": page !== here ? null : location.pathname.endsWith(page) ? "page" : "true" }, name));
  keepFocus(() => document.getElementById("bar").replaceChildren(el("nav", { "aria-label": "TaskHub" }, tabs), el("span", { class: "hub" }, ...(where ?? []), place ? when : "")));
}
setInterval(() => { if (place) paint(); }, 1000);
paint();

// --- Airflow's UI around this page

/**
 * A link to a page of Airflow's UI, which shows this page in a frame. The frame's sandbox forbids a link with a target
 * outside the frame. So a click changes the history of Airflow's window instead.
 */
export function airflowLink(path, ...children) {
  const href = base + path;
  return el("a", { href, onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || window.parent === window) return;
    event.preventDefault();
    try {
      window.parent.history.pushState({}, "", href);
      window.parent.dispatchEvent(new window.parent.PopStateEvent("popstate"));
    } catch { location.href = href; }
  } }, ...children);
}

const part = encodeURIComponent;
export const runPath = (a) => `/dags/${part(a.dag)}/runs/${part(a.run)}`;
export const taskPath = (a) => `${runPath(a)}/tasks/${part(a.task)}${a.index >= 0 ? `/mapped/${a.index}` : ""}`;
export const instanceHref = (id, conn) => `${base}/taskhub/page/instance?${new URLSearchParams({ id, ...(conn ? { conn } : {}) })}`;

function theme() {
  let dark = matchMedia("(prefers-color-scheme: dark)").matches, ground = "";
  try {
    const outer = window.parent.document.documentElement;
    if (window.parent !== window && /\b(light|dark)\b/.test(outer.className)) dark = /\bdark\b/.test(outer.className);
    if (window.parent !== window) ground = window.parent.getComputedStyle(outer).backgroundColor;
  } catch { /* Airflow's window has another origin: use the theme of the browser */ }
  document.documentElement.className = dark ? "dark" : "";
  // the background of Airflow's window, so that the frame has no visible edge; a transparent one means none
  document.documentElement.style.setProperty("--bg", /^(|transparent|rgba\(.*, 0\))$/.test(ground) ? "" : ground);
}
theme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
try {
  if (window.parent !== window) new MutationObserver(theme).observe(window.parent.document.documentElement, { attributeFilter: ["class"] });
} catch { /* Airflow's window has another origin */ }
