// The list of instances. Running and failed instances come first. The counts by status are buttons that filter the list.

import { orders } from "./batch.js";
import { airflowLink, ask, bar, chip, duration, el, ghosts, instanceHref, keepFocus, query, refresh, runPath, status, time, triggererTrouble, trouble } from "./page.js";

const STATUSES = ["Running", "Pending", "Suspended", "Failed", "Completed", "Terminated"];
const WINDOWS = [["hour", "last hour"], ["day", "last 24 hours"], ["week", "last 7 days"], ["month", "last 31 days"], ["all", "all time"]];
const LIMIT = 25;
const main = document.getElementById("main");
const filter = {
  conn: query.get("conn") ?? "", status: query.get("status") ?? "", text: query.get("text") ?? "",
  window: query.get("window") ?? "day", offset: Number(query.get("offset")) || 0,
};

const chips = el("div", { class: "chips", style: "margin:0", role: "group", "aria-label": "Status" });
const search = el("input", { type: "search", placeholder: "Id, name or tag=value", value: filter.text, "aria-label": "Filter by id, name or tag" });
const since = el("select", { "aria-label": "Started" }, WINDOWS.map(([value, text]) => el("option", { value, selected: value === filter.window }, text)));
const hubs = el("select", { "aria-label": "Hub", hidden: true });
const body = el("tbody", {}, ghosts(8, [60, 260, 110, 60, 50, 130, 160]));
const table = el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {},
  ...["Status", "Instance and its Airflow run", "Orchestrator", "Started"].map((text) => el("th", {}, text)),
  el("th", { class: "n" }, "Duration"), el("th", {}, "Activities"), el("th", {}, "Now"))), body));
const foot = el("div", { class: "foot" });
const notes = el("div"), order = el("span", { class: "actions" }), batch = el("div");
main.replaceChildren(el("div", { class: "head", style: "margin:0" }, el("h1", {}, "Instances"), order),
  el("div", { class: "chips" }, chips, el("span", { class: "space" }), search, since, hubs), batch, notes, table, foot);

function change(values) {
  Object.assign(filter, { offset: 0 }, values);
  const kept = Object.entries(filter).filter(([name, value]) => value && !(name === "window" && value === "day"));
  history.replaceState({}, "", `${location.pathname}?${new URLSearchParams(kept)}`);
  again();
}

function show(answer) {
  if (answer.asked !== JSON.stringify(filter)) { again(); return; }
  bar(answer);
  const all = Object.values(answer.counts).reduce((sum, count) => sum + count, 0);
  keepFocus(() => chips.replaceChildren(statusChip("All", "", all), ...STATUSES.filter((name) => answer.counts[name] || ["Running", "Failed", "Completed"].includes(name) || name === filter.status)
    .map((name) => statusChip(name, name, answer.counts[name] ?? 0))));
  notes.replaceChildren(...(answer.triggerer ? [el("div", { class: "note" }, answer.triggerer)] : []), ...(answer.capped ? [el("div", { class: "note" }, "This time has more than 5,000 instances: only 5,000 of them are counted and shown. Choose a shorter time.")] : []));
  const narrowed = filter.text || filter.status || filter.window !== "all";
  keepFocus(() => body.replaceChildren(...answer.rows.map((row) => line(row, answer))));
  table.hidden = !answer.rows.length;
  if (!answer.rows.length) {
    foot.replaceChildren(el("div", { class: "empty", style: "flex:1" },
      all || filter.text ? [el("b", {}, "No instance matches."), "Choose another status, text or time."]
        : [el("b", {}, filter.window === "all" ? "No instances yet." : `No instances in the ${WINDOWS.find(([name]) => name === filter.window)[1]}.`),
          "A TaskHubOperator's first run will appear here.", narrowed && filter.window !== "all" ? [" ", el("button", { onclick: () => { since.value = "all"; change({ window: "all" }); } }, "Show all time")] : null]));
    return;
  }
  const last = answer.offset + answer.rows.length;
  foot.replaceChildren(el("span", {}, `${answer.offset + 1}–${last} of ${answer.total.toLocaleString("en")}`), el("span", {},
    el("button", { disabled: !answer.offset, onclick: () => change({ offset: Math.max(0, filter.offset - LIMIT) }) }, "‹ Previous"), " · ",
    el("button", { disabled: last >= answer.total, onclick: () => change({ offset: filter.offset + LIMIT }) }, "Next ›")));
}

const statusChip = (text, value, count) => chip(text, count, filter.status === value, () => change({ status: value }));

function line(row, answer) {
  const quiet = row.status !== "Failed" && !row.fault;
  return el("tr", {},
    el("td", {}, status(row.status)),
    el("td", { class: "id" }, el("a", { class: "mono", href: instanceHref(row.id, answer.conn), "data-key": `instance ${row.id}` }, row.id), " ",
      row.airflow ? el("span", { class: "small", style: "white-space:nowrap" }, airflowLink(runPath(row.airflow), "↗ run")) : ""),
    el("td", {}, row.name), el("td", {}, time(row.created)),
    el("td", { class: "n" }, row.created == null || row.status === "Pending" ? "" : duration((row.ended ?? answer.time) - row.created)),
    el("td", {}, progress(row.activities)),
    el("td", { class: `now small ${quiet ? "mute" : ""}` }, row.now));
}

const PARTS = [["completed", "done", "ok"], ["running", "running", "run"], ["cancelling", "cancelling", "run"], ["failed", "failed", "bad"], ["lost", "lost", "bad"], ["cancelled", "cancelled", "off"]];

function progress(tally) {
  if (!tally || !tally.all) return el("span", { class: "small mute", title: "This column counts recorded activities, such as those with Spark. The timeline of the instance shows the others" }, "–");
  const there = PARTS.filter(([state]) => tally[state]);
  return [el("span", { class: "bar", "aria-hidden": "true" }, there.map(([state, , kind]) => el("i", { class: kind, style: `width:${(100 * tally[state]) / tally.all}%` }))),
    " ", el("span", { class: "small mute" }, there.map(([state, name]) => `${tally[state]} ${name}`).join(", "))];
}

function failed(error) {
  if (!error.code || error.code >= 500) { if (!body.querySelector(".ghost")) return false; }
  notes.replaceChildren();
  table.hidden = true;
  foot.replaceChildren(el("div", { style: "flex:1" }, trouble(error)));
  return false;
}

let typing = 0;
search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => change({ text: search.value }), 250); });
since.addEventListener("change", () => change({ window: since.value }));
hubs.addEventListener("change", () => change({ conn: hubs.value }));

ask("hubs").then((known) => {
  if (known.length < 2) return;
  hubs.replaceChildren(...known.map((hub) => el("option", { value: hub.conn, selected: hub.conn === filter.conn }, `${hub.hub} · ${hub.place}`)));
  hubs.hidden = false;
}).catch(() => { /* the list shows the same error */ });

const again = refresh(async () => {
  const asked = JSON.stringify(filter);
  const answer = await ask("instances", { ...filter, limit: LIMIT });
  const waits = answer.rows.some((row) => row.airflow && row.ended == null);
  return { ...answer, asked, triggerer: waits ? await triggererTrouble() : "" };
}, show, failed);
orders(order, batch, () => { const { offset: _, ...rest } = filter; return rest; }, again);
