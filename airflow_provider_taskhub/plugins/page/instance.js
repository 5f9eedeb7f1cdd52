// The page of one instance: its state, its timeline, the details of the selected attempt, and its history.

import { airflowLink, ask, bar, base, duration, el, exactTime, instanceHref, keepFocus, PARTITION_STATES, pretty, query, redraw, refresh, status, taskPath, time, triggererTrouble, trouble, worker } from "./page.js";
import { buttons, raise } from "./actions.js";
import { compare, compareButton } from "./compare.js";
import { told } from "./dialog.js";
import { historyOf } from "./history.js";
import { childrenOf, path, waits } from "./relations.js";
import { colour, draw, workersOf } from "./timeline.js";

const main = document.getElementById("main");
let id = query.get("id"), conn = query.get("conn") ?? "", siblings = null, unasked = "";
let chosen = null, last = null, log = null, growing = false; // growing: the attempt ran when its log was last asked for
const parts = Object.fromEntries(["head", "note", "time", "detail", "history", "children", "data", "more"].map((name) => [name, el("div", { id: name })]));
const past = historyOf(parts.history), children = childrenOf(parts.children);

main.replaceChildren(el("div", { class: "empty" }, "Loading…"));

/** Find the instance to show. The address of a task's tab has no instance id; the newest instance of the task is shown. */
async function find() {
  if (id) return true;
  const task = Object.fromEntries(["dag_id", "run_id", "task_id", "map_index"].map((name) => [name, query.get(name) ?? ""]));
  if (!task.dag_id) throw Object.assign(new Error("The address of this page names no instance."), { code: 404 });
  const found = await instancesOf(task);
  if (!found.instances.length) {
    id = await pushed(task, "instance_id");
    conn ||= id ? await connectionOf(task) : "";
    return Boolean(id);
  }
  siblings = found.instances;
  [{ id }] = siblings;
  conn = found.conn;
  return true;
}

/** Read the task's instances from the hubs of this page. An error of one hub is kept, because the task may use another. */
async function instancesOf(task) {
  unasked = "";
  try { return await ask("task", { ...task, conn }); } catch (error) {
    if (conn || ![409, 503].includes(error.code)) throw error;
    unasked = `A hub of this page cannot be asked: ${error.message}`;
    return { instances: [] };
  }
}

/** Return the Airflow connection of the task, from its link. The server answers 404 if this page does not show its hub. */
async function connectionOf(task) {
  const answer = await fetch(`${taskInApi(task)}/links?map_index=${mapIndex(task)}`, { headers: { Accept: "application/json" } });
  const link = answer.ok ? (await answer.json()).extra_links["TaskHub instance"] : null;
  return new URLSearchParams(link?.split("?")[1]).get("conn") ?? "";
}

/**
 * Return an XCom that the task has pushed, from Airflow's API; null if there is none.
 * The XComs are needed because the DAG's author may have chosen the instance id, and the address of a task's tab names
 * no connection.
 */
async function pushed(task, key) {
  const entry = `${taskInApi(task)}/xcomEntries/${encodeURIComponent(key)}?map_index=${mapIndex(task)}`;
  const answer = await fetch(entry, { headers: { Accept: "application/json" } });
  if (!answer.ok) return null;
  const { value } = await answer.json();
  if (typeof value !== "string") return null;
  try { return String(JSON.parse(value)); } catch { return value; }
}

/** Return the address of a task instance in Airflow's API. */
function taskInApi({ dag_id, run_id, task_id }) {
  const part = encodeURIComponent;
  return `${base}/api/v2/dags/${part(dag_id)}/dagRuns/${part(run_id)}/taskInstances/${part(task_id)}`;
}

const mapIndex = ({ map_index }) => (/^-?\d+$/.test(map_index) ? map_index : "-1");

async function load() {
  if (!(await find())) return null;
  const answer = await ask("instance", { id, conn });
  if (answer.instance.airflow && !siblings) siblings = await othersOf(answer.instance.airflow);
  answer.triggerer = answer.instance.airflow && answer.instance.ended == null ? await triggererTrouble() : "";
  return answer;
}

/** Return all instances of the task; none if this instance is only a child of one of them. */
async function othersOf({ dag, run, task, index }) {
  const found = await ask("task", { dag_id: dag, run_id: run, task_id: task, map_index: index, conn });
  return found.instances.some((one) => one.id === id) ? found.instances : [];
}

function show(answer) {
  if (answer === null) {
    main.replaceChildren(el("div", { class: "empty" }, el("b", {}, "No instance yet."), "This task has not started an orchestration in the hub.",
      unasked ? el("div", { class: "small mute" }, unasked) : ""));
    return;
  }
  last = answer;
  bar(answer);
  if (!parts.head.isConnected)
    main.replaceChildren(parts.head, told, parts.note, el("h2", {}, "Timeline"), parts.time, parts.children, parts.data, el("div", { class: "two" }, parts.detail, parts.history), parts.more);
  paint();
  const record = selected();
  if (record?.log && (log === null || growing)) fetchLog(record);
}

function paint() {
  const { instance, served, tally, activities } = last;
  if (chosen && ![...activities, ...last.earlier].some(isChosen) && chosen.execution !== instance.execution) [chosen, log] = [null, null];
  const live = instance.ended == null;
  document.title = `${instance.id} · TaskHub`;
  keepFocus(() => parts.head.replaceChildren(
    el("div", { class: "head" }, el("div", {}, path(last),
      el("h1", { class: "mono", style: "font-size:17px" }, instance.id)), siblings?.length > 1 ? chooser() : null, el("div", { class: "tools" }, compareButton(last)), buttons(last, again)),
    el("dl", { class: "facts" },
      fact("Status", status(instance.status)),
      fact("Orchestrator", instance.name, instance.version ? el("span", { class: "mute" }, ` version ${instance.version}`) : ""),
      fact("Started", time(instance.created), el("span", { class: "mute" }, ` · ${duration((instance.ended ?? last.time) - instance.created)}`)),
      fact("Activities", counts(tally)),
      fact("Served by", `partition ${served.partition}`, served.owner && live ? el("span", { title: served.owner }, ` · ${worker(served.owner)}`) : "", served.epoch != null && live ? el("span", { class: "mute" }, ` epoch ${served.epoch}${served.draining ? ", moving" : ""}`) : "", live ? standing(served) : ""),
      instance.airflow ? fact("Airflow", airflowLink(taskPath(instance.airflow), `${instance.airflow.dag} ▸ ${instance.airflow.run} ▸ ${instance.airflow.task}${instance.airflow.index >= 0 ? `[${instance.airflow.index}]` : ""}`),
        el("span", { class: "mute" }, ` generation ${instance.airflow.generation}, started by try ${instance.airflow.try}`)) : null)));
  const broken = last.unreadable.length ? [el("div", { class: "note bad" }, el("b", {}, "Some parts of this instance cannot be read. "), "The other parts are shown.",
    el("details", { "data-key": "unreadable" }, el("summary", { class: "small", "data-key": "unreadable parts" }, `parts that cannot be read (${last.unreadable.length})`), el("pre", {}, last.unreadable.join("\n"))))] : [];
  const alone = last.triggerer ? [el("div", { class: "note" }, last.triggerer)] : [];
  const standstill = () => waits(last, (name) => raise(last, again, name));
  redraw(parts.note, ...broken, ...alone, ...(instance.failure ? [el("div", { class: "note bad" }, el("b", {}, instance.failure.headline), instance.failure.retryable ? "" : el("span", { class: "mute" }, " (no retries)"),
    instance.failure.at ? el("div", { class: "small" }, `failed at ${instance.failure.at}`) : "",
    instance.failure.stack ? el("details", { "data-key": "stack" }, el("summary", { class: "small", "data-key": "stack trace" }, "stack trace"), el("pre", { "data-key": "trace" }, instance.failure.stack)) : "")]
    : live ? standstill() : instance.now ? [el("div", { class: `note ${instance.status === "Failed" ? "bad" : ""}` }, instance.now)] : []));
  paintTimeline(live);
  paintDetail(activities);
  past.show(last);
  children.show(last);
  paintData(last.lineage);
  paintMore(instance);
}

/** Show the data that the activities have declared; nothing if they declared none. */
function paintData(lineage) {
  const rows = dataRows(lineage);
  redraw(parts.data, ...(rows.length ? [el("h2", {}, "Data"), el("dl", { class: "pairs" }, ...rows)] : []));
}

function dataRows({ inlets, outlets, more }) {
  const rows = [["read", inlets], ["written", outlets]].filter(([, uris]) => uris.length)
    .flatMap(([name, uris]) => [el("dt", {}, name), el("dd", {}, uris.map((uri) => el("div", { class: "mono" }, uri)))]);
  return more ? [...rows, el("dt", {}), el("dd", { class: "mute" }, `and ${more.toLocaleString("en")} more`)] : rows;
}

const fact = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, ...value));

/** Show what is wrong with the owner of the partition; nothing if the owner is alive, or if this is not known yet. */
function standing({ state, offline }) {
  const ordered = offline && state !== "offline" ? el("span", { class: "mute", title: PARTITION_STATES.offline }, " · ordered offline") : "";
  if (state === "live" || state === "unproven") return ordered;
  return [el("span", { class: state === "silent" ? "bad" : "mute", title: PARTITION_STATES[state] ?? "" }, ` · ${state}`), ordered];
}

function counts(tally) {
  if (!tally.all) return el("span", { class: "mute" }, "none recorded");
  return [["completed", "done"], ["running", "running"], ["failed", "failed"], ["lost", "lost"], ["cancelling", "cancelling"], ["cancelled", "cancelled"], ["retried", "retried"]]
    .filter(([key]) => tally[key]).map(([key, name]) => `${tally[key]} ${name}`).join(" · ");
}

/** A list to select one of the task's instances: one for each clear of the task, the newest first. */
function chooser() {
  return el("label", { class: "small mute", style: "margin-left:auto" }, "instances of this task: ",
    el("select", { "data-key": "chooser", onchange: (event) => { location.href = instanceHref(event.target.value, conn); } }, siblings.map((one) =>
      el("option", { value: one.id, selected: one.id === id }, `${one.name} · generation ${one.generation} · try ${one.try} · ${one.status}`))));
}

const isChosen = (one) => chosen !== null && one.execution === chosen.execution && one.task === chosen.task && one.attempt === chosen.attempt;

function paintTimeline(live) {
  const { instance, timeline, activities } = last;
  const bars = timeline.lanes.flatMap((lane) => lane.bars);
  const ends = [...bars.map((one) => one.end ?? 0), ...timeline.episodes.map(([start, end]) => end ?? start), instance.ended ?? 0];
  const from = Math.min(instance.created ?? Infinity, ...bars.map((one) => one.start), ...timeline.episodes.map(([start]) => start));
  const to = live ? last.time + Math.max(500, (last.time - from) * 0.03) : Math.max(...ends, from + 1) + Math.max(100, (Math.max(...ends) - from) * 0.02);
  if (!timeline.lanes.length && !timeline.episodes.length) {
    parts.time.replaceChildren(el("div", { class: "lane empty" }, el("b", {}, "Nothing has run yet."), "A bar will appear here for each activity."));
    return;
  }
  const width = Math.max(700, parts.time.clientWidth || 1190);
  const picture = draw(timeline, { from, to, now: last.time, live, width, chosen: chosen?.execution === instance.execution ? `${chosen.task}/${chosen.attempt}` : null, pick: (task, attempt) => choose(instance.execution, task, attempt) });
  const workers = workersOf(timeline.lanes);
  const square = (style, name) => el("span", {}, el("i", { style }), name);
  keepFocus(() => parts.time.replaceChildren(el("div", { class: "lane scroll" }, picture), el("div", { class: "legend" },
    workers.map((name) => el("span", { title: name }, el("i", { style: `background:${colour(workers, name)}` }), worker(name))),
    bars.some((one) => !one.worker && one.state === "completed") ? square("background:var(--idle)", "not recorded") : "",
    bars.some((one) => ["lost", "failed"].includes(one.state)) ? square("background:var(--bad)", "lost or failed attempt") : "",
    bars.some((one) => one.worker && one.state === "cancelled") ? square("background:var(--off)", "cancelled attempt") : "",
    bars.some((one) => ["waiting", "fired", "scheduled", "ended", "slot"].includes(one.state)) ? square("border:1.5px dashed var(--wait)", "waiting") : "",
    timeline.more ? el("span", {}, `and ${timeline.more} more`) : "",
    timeline.first ? el("span", {}, `without the first ${timeline.first.toLocaleString("en")} of ${last.history.total.toLocaleString("en")} events`) : "",
    el("span", { class: "space" }, `click a bar for input, output${activities.some((one) => one.log) ? ", log" : ""}${activities.some((one) => one.spark_ui) ? " and Spark UI" : ""}`))));
}

/** Select an attempt. The execution id is needed, because each generation of an instance uses the same task ids again. */
function choose(execution, task, attempt) {
  chosen = { execution, task, attempt };
  log = null;
  paint();
  const record = selected();
  if (record?.log) fetchLog(record);
}

/** The record of the selected attempt, if there is one. */
const selected = () => [...last.activities, ...last.earlier].find(isChosen);

/** Ask for the last lines of an attempt's log, and show them. While the attempt runs, each reading of the page does it again. */
async function fetchLog(record) {
  const wanted = chosen;
  growing = record.ended == null;
  try { log = (await ask("log", { id, conn, execution: record.execution, task: record.task, attempt: record.attempt })).text || "(nothing was written)"; } catch (error) { log = `(${error.message})`; }
  if (wanted === chosen) paintDetail(last.activities);
}

/** Close the details. The focus goes back to the bar, or to the button, that has opened them. */
function unchoose() {
  const from = parts.time.querySelector(".pick.on") ?? parts.more.querySelector(`[data-key="${CSS.escape(`show ${chosen.execution}/${chosen.task}/${chosen.attempt}`)}"]`);
  from?.focus({ preventScroll: true });
  chosen = null;
  paint();
}

function paintDetail(activities) {
  if (!chosen) {
    redraw(parts.detail, el("h2", {}, "Input and output"), payloads(last.instance));
    return;
  }
  const current = chosen.execution === last.instance.execution;
  const attempts = (current ? activities : last.earlier).filter((one) => one.execution === chosen.execution && one.task === chosen.task);
  const record = attempts.find(isChosen);
  const lane = current ? last.timeline.lanes.find((one) => one.task === chosen.task || one.bars.some((bar) => bar.task === chosen.task)) : null;
  const rows = [], place = `${chosen.execution}/${chosen.task}/${chosen.attempt}`, text = (name, said) => el("pre", { "data-key": `${name} ${place}` }, said);
  const pair = (name, ...value) => rows.push(el("dt", {}, name), el("dd", {}, ...value));
  const input = current ? last.inputs[chosen.task] : null;
  if (input) pair("input", text("input", pretty(input)));
  if (record) {
    pair("state", record.state, record.message ? ` · ${record.message}` : "", record.progress != null ? ` · ${Math.round(record.progress * 100)} %` : "");
    pair("worker", ...(record.worker ? [el("span", { title: record.worker }, worker(record.worker)), `, executor ${record.executor}`] : ["none: it was cancelled before it began"]));
    pair("time", `${exactTime(record.claimed)} – ${record.ended ? exactTime(record.ended) : "now"}`, el("span", { class: "mute" }, ` · ${duration((record.ended ?? last.time) - record.claimed)}`));
    if (record.application) pair("Spark", record.application, /^https?:\/\//.test(record.spark_ui ?? "") ? [" ", el("a", { "data-key": `spark ${place}`, href: record.spark_ui, target: "_blank", rel: "noopener noreferrer" }, "Spark UI")] : "");
    if (record.result) pair("output", text("output", pretty(record.result)));
    rows.push(...dataRows(record.lineage));
    if (record.failure) pair("error", text("error", `${record.failure.type}: ${record.failure.message}${record.failure.stack ? `\n${record.failure.stack}` : ""}`));
    for (const other of attempts.filter((one) => one !== record))
      pair(`attempt ${other.attempt}`, el("button", { "data-key": `attempt ${other.execution}/${other.task}/${other.attempt}`, onclick: () => choose(other.execution, other.task, other.attempt) }, `${other.state}${other.worker ? ` on ${worker(other.worker)}` : ""}`));
    if (record.log) pair("log", log === null ? el("span", { class: "mute" }, "loading…") : text("log", log));
  } else pair("state", (lane?.bars.find((bar) => (bar.task ?? lane.task) === chosen.task) ?? lane?.bars[0])?.state ?? "");
  redraw(parts.detail, el("h2", { class: "code" }, lane?.label ?? record?.name ?? "", record ? ` · attempt ${record.attempt}` : "", current ? "" : " · earlier execution", " ",
    el("button", { class: "small", style: "padding:0 8px", "data-key": "close", onclick: unchoose }, "close")), el("dl", { class: "pairs" }, ...rows));
}

function payloads(instance) {
  const rows = [];
  for (const [name, value] of [["input", instance.input], ["status", instance.custom], ["output", instance.output]])
    if (value) rows.push(el("dt", {}, name), el("dd", {}, el("pre", { "data-key": `${name} of all` }, pretty(value))));
  return rows.length ? el("dl", { class: "pairs" }, ...rows) : el("div", { class: "mute" }, "No input, no output.");
}

function paintMore(instance) {
  const tags = Object.entries(instance.tags).sort();
  const before = last.earlier.length ? [el("details", { "data-key": "earlier", style: "margin-top:20px" }, el("summary", { class: "small", "data-key": "earlier executions" }, `attempts of earlier executions (${last.earlier.length})`),
    el("div", { class: "scroll", style: "margin-top:8px" }, el("table", {}, el("thead", {}, el("tr", {}, ["Activity", "Attempt", "State", "Worker", "Started", ""].map((text) => el("th", {}, text)))), el("tbody", {}, last.earlier.map((one) =>
      el("tr", {}, el("td", {}, `${one.name} #${one.task}`), el("td", {}, one.attempt), el("td", {}, one.state), el("td", { title: one.worker }, worker(one.worker)), el("td", {}, time(one.claimed)),
        el("td", {}, el("button", { class: "small", style: "padding:0 8px", "data-key": `show ${one.execution}/${one.task}/${one.attempt}`, onclick: () => choose(one.execution, one.task, one.attempt) }, "show"))))))))] : [];
  redraw(parts.more, ...before, ...(tags.length ? [el("details", { "data-key": "tags", style: "margin-top:20px" }, el("summary", { class: "small", "data-key": "all tags" }, `tags (${tags.length}), execution ${instance.execution}`),
    el("dl", { class: "pairs", style: "margin-top:8px" }, ...tags.flatMap(([name, value]) => [el("dt", { class: "mono" }, name), el("dd", { class: "mono" }, value)])))] : []));
}

const other = query.get("compare");
const again = other && id ? compare(main, id, other, conn) : refresh(load, show, (error) => {
  if (last && (!error.code || error.code >= 500)) return false;
  main.replaceChildren(trouble(error));
  return error.code === 404 && Boolean(query.get("id"));
});
addEventListener("resize", () => { if (last && !other) paintTimeline(last.instance.ended == null); });
