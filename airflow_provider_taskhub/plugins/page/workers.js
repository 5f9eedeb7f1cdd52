// The workers of the hub: which of them live, what they can run, and which partitions they serve.

import { askFirst, REASON, tell, told } from "./dialog.js";
import { ask, bar, base, el, ghosts, keepFocus, query, refreshTable, send, time, worker } from "./page.js";

const HEADS = ["Worker", "State", "App and version", "Roles", "Partitions", "Activities now", "Started", "Functions", ""];
const ONE = { orchestrators: "orchestrator", activities: "activity" };
const main = document.getElementById("main");
const conn = query.get("conn") ?? "";
const open = new Set();
const body = el("tbody", {}, ghosts(3, [160, 60, 110, 90, 60, 40, 70, 120, 60]));
const place = el("div", {}, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, HEADS.map((name) => el("th", { class: name === "Activities now" ? "n" : "" }, name)))), body)));
const none = el("div", { class: "empty", hidden: true }, el("b", {}, "No worker is listed."), "Start one: taskhub worker --app module:app");
main.replaceChildren(el("div", { class: "head", style: "margin:0 0 14px" }, el("h1", {}, "Workers")), told, place, none);

function show(answer) {
  bar(answer);
  place.hidden = !answer.workers.length;
  none.hidden = Boolean(answer.workers.length);
  keepFocus(() => body.replaceChildren(...answer.workers.map((one) => line(one, answer))));
}

function line(one, answer) {
  const apps = Object.entries(one.apps).map(([name, version]) => `${name}${version ? ` ${version}` : ""}`).join(", ");
  const state = one.alive ? ["ok", "live", "Its row in the hub changes, so the worker lives."] : ["bad", "silent", "Its row in the hub does not change: the worker is dead, paused or cut off from the store."];
  const address = `${base}/taskhub/page/partitions?${new URLSearchParams({ ...(conn ? { conn } : {}), worker: one.worker })}`;
  return el("tr", {}, el("td", { title: one.worker }, worker(one.worker)),
    el("td", {}, el("span", { class: `s ${state[0]}`, title: state[2] }, el("i", { "aria-hidden": "true" }), state[1])),
    el("td", {}, apps || "–"), el("td", {}, one.roles.join(", "), one.pools.join() === "default" ? "" : el("div", { class: "small mute" }, `${one.pools.length === 1 ? "pool" : "pools"} ${one.pools.join(", ")}`)),
    el("td", {}, one.partitions.length ? el("a", { href: address, "data-key": `partitions ${one.worker}` }, one.partitions.join(" ")) : el("span", { class: "mute" }, "none"), one.weight === 1 ? "" : el("span", { class: "mute" }, ` weight ${one.weight}`)),
    el("td", { class: "n" }, ...running(one), ...takenOver(one)), el("td", {}, time(one.started)), el("td", { class: "now small" }, functions(one)),
    el("td", { class: "n" }, one.drained ? el("div", { class: "small mute" }, `drained by ${one.drained.by}, `, time(one.drained.at), one.drained.reason ? `: ${one.drained.reason}` : "") : "", answer.may && one.roles.includes("orchestrator") ? action(one) : ""));
}

// How many slots are taken, and how many there are. A worker of .NET does not say it.
function running(one) {
  if (!one.slots) return [one.running];
  const spark = one.spark_slots ? [el("div", { class: "small mute" }, `Spark ${one.spark_slots.join(" of ")}`)] : [];
  return [one.slots.join(" of "), ...spark];
}

function takenOver(one) {
  return Object.entries(one.taken_over).map(([lost, attempts]) => el("div", { class: "small mute", title: `It has begun the next attempts of these activities. Lost worker: ${lost}` }, `${attempts} taken over from ${worker(lost)}`));
}

function functions(one) {
  if (one.orchestrators === null) return el("span", { class: "mute" }, "for administrators");
  const lists = [["orchestrators", one.orchestrators], ["activities", one.activities]].filter(([, names]) => names.length);
  return el("details", { open: open.has(one.worker), ontoggle: (event) => open[event.target.open ? "add" : "delete"](one.worker) },
    el("summary", { "data-key": `functions ${one.worker}` }, lists.map(([what, names]) => `${names.length} ${names.length === 1 ? ONE[what] : what}`).join(", ") || "none"), lists.map(([what, names]) => el("div", {}, `${what}: ${names.join(", ")}`)));
}

function action(one) {
  const name = one.drained?.node ?? one.worker.replace(/\/[^/]*$/, "");
  const [label, path, go, says, fields] = one.drained
    ? ["Lift the drain…", "undrain", "Lift the order", [`Workers with the name ${name} may take partitions again.`], []]
    : ["Drain…", "drain", "Drain", [`Every worker with the name ${name} hands over its partitions and takes none, also after a restart, until somebody lifts the order.`, "It goes on running activities. If no other worker serves the partitions, their instances stand still."], [REASON]];
  return el("button", { class: "small", "data-key": `drain ${one.worker}`, onclick: () => askFirst({ title: `${label.replace("…", "")}: ${name}`, says, fields, button: go,
    act: (values) => send(`worker/${path}`, { worker: name, conn, ...values }), done: ({ text }) => { tell(text); again(); } }) }, label);
}

const again = refreshTable(() => ask("workers", { conn }), show, body, place);
