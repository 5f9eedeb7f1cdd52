// The list of instances. Running and failed instances come first. The counts by status are buttons that filter the list.

import { orders } from "./batch.js";
import { airflowLink, ask, bar, chip, duration, el, ghosts, instanceHref, keepFocus, keepQuery, query, refresh, runPath, status, time, triggererTrouble, trouble } from "./page.js";

const STATUSES = ["Running", "Pending", "Suspended", "Failed", "Completed", "Terminated"];
const WINDOWS = [["hour", "last hour"], ["day", "last 24 hours"], ["week", "last 7 days"], ["month", "last 31 days"], ["all", "all time"], ["between", "between…"]];
// what more the list can be filtered by: name in the address, label, hint
const MORE = [["dag", "DAG", "DAG"], ["name", "Orchestrator", "Orchestrator"], ["tag", "Tag", "Tag or tag=value"], ["error", "Text in the error", "Text in the error"]];
// label, name in the address; columns without a name cannot be sorted. Times and durations begin with the largest.
// Without an order, running and failed instances come first
const COLUMNS = [["Status", "status"], ["Instance and its Airflow run", "id"], ["Orchestrator", "name"], ["Started", "started"], ["Ended", "ended"], ["Duration", "duration"], ["Activities"], ["Now"]];
const LARGEST_FIRST = ["started", "ended", "duration"];
const LIMIT = 25;
const main = document.getElementById("main");
const filter = {
  conn: query.get("conn") ?? "", status: query.get("status") ?? "", text: query.get("text") ?? "",
  roots: query.get("roots") ?? "", window: query.get("window") ?? (query.get("from") || query.get("to") ? "between" : "day"), offset: Number(query.get("offset")) || 0, sort: query.get("sort") ?? "",
  ...Object.fromEntries([...MORE.map(([name]) => name), "from", "to"].map((name) => [name, query.get(name) ?? ""])),
};

const chips = el("div", { class: "chips", style: "margin:0", role: "group", "aria-label": "Status" });
const search = el("input", { type: "search", placeholder: "Id, name or tag=value", value: filter.text, "aria-label": "Filter by id, name or tag" });
const since = el("select", { "aria-label": "Started" }, WINDOWS.map(([value, text]) => el("option", { value, selected: value === filter.window }, text)));
const hubs = el("select", { "aria-label": "Hub", hidden: true });
const times = [["from", "Started from"], ["to", "Started until"]].map(([name, label]) => el("input", { type: "datetime-local", name, "aria-label": label, title: label, value: local(filter[name]) }));
const offers = Object.fromEntries(["dag", "name"].map((name) => [name, el("datalist", { id: `offers-${name}` })]));
const fields = MORE.map(([name, label, hint]) => el("input", { type: "search", name, "aria-label": label, placeholder: hint, value: filter[name], list: offers[name]?.id }));
const roots = el("input", { type: "checkbox", name: "roots", checked: filter.roots === "true" });
const more = el("button", { class: "chip", "aria-expanded": "false", "aria-controls": "more" });
const panel = el("div", { class: "chips more", id: "more", role: "group", "aria-label": "More filters", hidden: true }, fields, Object.values(offers), el("label", {}, roots, " Without a parent"),
  el("button", { onclick: () => { for (const field of fields) field.value = ""; roots.checked = false; change({ roots: "", ...Object.fromEntries(MORE.map(([name]) => [name, ""])) }); } }, "Clear"));
const body = el("tbody", {}, ghosts(8, [60, 260, 110, 60, 60, 50, 130, 160]));
const heads = COLUMNS.map(([text, column]) => el("th", { class: column === "duration" ? "n" : "" }, column == null ? text
  : el("button", { class: "sort", title: `Sort by ${text.toLowerCase()}`, onclick: () => change({ sort: next(column) }) }, text)));
const table = el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body));
const foot = el("div", { class: "foot" });
const notes = el("div"), order = el("span", { class: "actions" }), batch = el("div");
main.replaceChildren(el("div", { class: "head", style: "margin:0" }, el("h1", {}, "Instances"), order),
  el("div", { class: "chips" }, chips, el("span", { class: "space" }), search, since, times, more, hubs), panel, batch, notes, table, foot);

function change(values) {
  Object.assign(filter, { offset: 0 }, values);
  keepQuery({ ...filter, window: filter.window === "day" ? "" : filter.window });
  paint();
  again();
}

/** The order after a click on a column's name: first one direction, then the other one, then no order of columns. */
function next(column) {
  const [first, second] = LARGEST_FIRST.includes(column) ? [`-${column}`, column] : [column, `-${column}`];
  return filter.sort === first ? second : filter.sort === second ? "" : first;
}

/** Show the order, the fields that the filter needs, and how many of the hidden ones are used. */
function paint() {
  COLUMNS.forEach(([, column], at) => {
    const sorted = column === "status" && !filter.sort ? "other" : { [column]: "ascending", [`-${column}`]: "descending" }[filter.sort];
    if (sorted) heads[at].setAttribute("aria-sort", sorted);
    else heads[at].removeAttribute("aria-sort");
  });
  for (const time of times) time.hidden = filter.window !== "between";
  const used = ["roots", ...MORE.map(([name]) => name)].filter((name) => filter[name]).length;
  more.replaceChildren("More filters", ...(used ? [" ", el("b", {}, String(used))] : []));
  more.setAttribute("aria-pressed", String(used > 0));
}

/** The value of a time field, in the browser's time zone, for a time in the address; "" if it is no time. */
function local(text) {
  const at = new Date(text);
  return text && !Number.isNaN(at.getTime()) ? new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16) : "";
}

function open(shown) {
  panel.hidden = !shown;
  more.setAttribute("aria-expanded", String(shown));
  if (!shown) return;
  ask("filters", { conn: filter.conn }).then((found) => {
    offers.dag.replaceChildren(...found.dags.map((value) => el("option", { value })));
    offers.name.replaceChildren(...found.names.map((value) => el("option", { value })));
  }).catch(() => { /* the list shows the same error */ });
}

function notesOf(answer) {
  const many = answer.most.toLocaleString("en");
  return [answer.triggerer,
    answer.reading == null ? "" : `${answer.reading.toLocaleString("en")} instances read so far. The others are not counted and not found yet. A whole id finds its instance already.`,
    answer.capped ? `This hub has more than ${many} instances: the newest ${many} are counted and found. A whole id finds any instance.` : ""].filter(Boolean);
}

/** How many instances the filters by parent and by time leave out; "" if none. */
function leftOut(answer) {
  const counted = (number, what) => number ? [`${number.toLocaleString("en")} ${what}`] : [];
  const parts = [...counted(answer.children, "with a parent"), ...counted(answer.elsewhen, "started at another time")];
  return parts.length ? `Not shown: ${parts.join(", ")}.` : "";
}

function show(answer) {
  if (answer.asked !== JSON.stringify(filter)) { again(); return; }
  bar(answer);
  const all = Object.values(answer.counts).reduce((sum, count) => sum + count, 0);
  keepFocus(() => chips.replaceChildren(statusChip("All", "", all), ...STATUSES.filter((name) => answer.counts[name] || ["Running", "Failed", "Completed"].includes(name) || name === filter.status)
    .map((name) => statusChip(name, name, answer.counts[name] ?? 0))));
  notes.replaceChildren(...notesOf(answer).map((text) => el("div", { class: "note" }, text)));
  const others = filter.text || filter.roots || MORE.some(([name]) => filter[name]), narrowed = others || filter.status || filter.window !== "all";
  keepFocus(() => body.replaceChildren(...answer.rows.map((row) => line(row, answer))));
  table.hidden = !answer.rows.length;
  if (!answer.rows.length) {
    foot.replaceChildren(el("div", { class: "empty", style: "flex:1" },
      answer.reading != null ? [el("b", {}, "No instance matches so far."), "The hub is still being read."]
        : all || others || filter.window === "between" ? [el("b", {}, "No instance matches."), `${leftOut(answer)} Choose another status, text, filter or time.`.trim()]
        : [el("b", {}, filter.window === "all" ? "No instances yet." : `No instances in the ${WINDOWS.find(([name]) => name === filter.window)[1]}.`),
          "A TaskHubOperator's first run will appear here.", narrowed && filter.window !== "all" ? [" ", el("button", { onclick: () => { since.value = "all"; change({ window: "all" }); } }, "Show all time")] : null]));
    return;
  }
  const out = leftOut(answer);
  const last = answer.offset + answer.rows.length;
  foot.replaceChildren(el("span", {}, `${answer.offset + 1}–${last} of ${answer.total.toLocaleString("en")}${out ? `. ${out}` : ""}`), el("span", {},
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
    el("td", {}, row.name), el("td", {}, time(row.created)), el("td", {}, row.ended == null ? "" : time(row.ended)),
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
for (const field of [search, ...fields]) field.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ text: search.value, ...Object.fromEntries(fields.map(({ name, value }) => [name, value])) }), 250);
});
roots.addEventListener("change", () => change({ roots: roots.checked ? "true" : "" }));
since.addEventListener("change", () => {
  if (since.value !== "between") for (const time of times) time.value = "";
  change({ window: since.value, ...(since.value === "between" ? {} : { from: "", to: "" }) });
});
for (const time of times) time.addEventListener("change", () => change({ [time.name]: time.value ? new Date(time.value).toISOString() : "" }));
more.addEventListener("click", () => open(panel.hidden));
paint();
if (filter.roots || MORE.some(([name]) => filter[name])) open(true);
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
orders(order, batch, () => { const { offset: _, sort: __, ...rest } = filter; return rest; }, again);
