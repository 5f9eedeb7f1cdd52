// The partitions of the hub: who serves each of them, what waits there, and which orders are in force.

import { askFirst, REASON, tell, told } from "./dialog.js";
import { ask, bar, chip, duration, el, ghosts, keepFocus, keepQuery, PARTITION_STATES, query, refreshTable, send, time, worker } from "./page.js";

const HEADS = ["Partition", "Owner", "State", "Epoch", "Messages", "Load", "Since", "Last renewal", "Orders", ""];
const RIGHT = new Set(["Epoch", "Messages", "Load"]);
const STATES = { live: "ok", silent: "bad", missing: "bad", unproven: "", offline: "off", kicked: "wait", released: "wait", new: "wait" };
const main = document.getElementById("main");
const filter = { conn: query.get("conn") ?? "", worker: query.get("worker") ?? "" };
const chips = el("div", { class: "chips" });
const body = el("tbody", {}, ghosts(8, [90, 160, 60, 30, 40, 40, 70, 70, 160, 60]));
const orders = el("div");
const table = el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, HEADS.map((name) => el("th", { class: RIGHT.has(name) ? "n" : "" }, name)))), body));
const place = el("div", {}, table);
main.replaceChildren(el("div", { class: "head", style: "margin:0" }, el("h1", {}, "Partitions")), told, chips, place, orders);

function show(answer) {
  bar(answer);
  const owners = new Map();
  for (const { owner } of answer.partitions) if (owner) owners.set(owner, (owners.get(owner) ?? 0) + 1);
  if (filter.worker && !owners.has(filter.worker)) owners.set(filter.worker, 0);
  const inForce = answer.orders.length + answer.partitions.reduce((sum, one) => sum + one.orders.length, 0);
  keepFocus(() => {
    chips.replaceChildren(chip("All", answer.partitions.length, !filter.worker, () => choose("")),
      ...[...owners].sort().map(([owner, count]) => chip(worker(owner), count, filter.worker === owner, () => choose(owner))),
      el("span", { class: "space" }), el("span", { class: "small mute" }, `orders in force: ${inForce}`));
    body.replaceChildren(...answer.partitions.filter((one) => !filter.worker || one.owner === filter.worker).map((one) => line(one, answer)));
    orders.replaceChildren(...(answer.orders.length ? [el("h2", {}, "Orders for the whole hub"), el("ul", {}, answer.orders.map((one) => el("li", {}, said(one))))] : []));
  });
}

function line(one, answer) {
  const standing = one.offline && one.state !== "offline" ? `${one.state}, ordered offline` : one.state;
  return el("tr", {}, el("td", { class: "mono" }, one.queue),
    el("td", {}, one.owner ? el("span", { title: one.owner }, worker(one.owner)) : el("span", { class: "mute" }, "nobody"), one.next_owner ? el("span", { class: "mute", title: one.next_owner }, ` → ${worker(one.next_owner)}`) : "", one.draining ? el("span", { class: "mute" }, ", moving") : ""),
    el("td", {}, el("span", { class: `s ${STATES[one.state] ?? ""}`, title: PARTITION_STATES[one.state] ?? "" }, el("i", { "aria-hidden": "true" }), standing)),
    el("td", { class: "n" }, one.epoch ?? "–"), el("td", { class: "n" }, one.messages ?? "–"), el("td", { class: "n" }, one.load == null ? "–" : `${one.load.toPrecision(2)}/s`),
    el("td", {}, time(one.owned_since)), el("td", {}, one.last_renewal == null ? "–" : `${duration(answer.time - one.last_renewal)} ago`),
    el("td", { class: "now small" }, one.orders.map((order) => el("div", {}, said(order))), one.kicked ? el("div", { class: "mute" }, `last kick: ${one.kicked}`) : "", one.failover ? lost(one.failover) : ""),
    el("td", { class: "n" }, answer.may ? actions(one) : ""));
}

const lost = ({ lost: name, at, silent, proven, messages, instances, attempts }) => el("div", { class: "mute" }, "last failover: ", time(at), " from ", el("span", { title: name }, worker(name)), proven ? ", which was proven dead" : ", whose lease had expired", silent == null ? "" : `, ${silent} s after its last renewal`, messages == null ? "" : `, with ${count(messages, "message")} of ${count(instances, "instance")}`, attempts ? `. Its taker has begun ${count(attempts, "attempt")} of the lost worker anew` : "");

const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

const said = (order) => [order.text, el("span", { class: "mute" }, ` by ${order.by || "?"}, `, time(order.at), order.reason ? `: ${order.reason}` : "")];

function actions(one) {
  const ordered = one.offline;
  const about = { partition: one.partition };
  return el("span", { class: "actions" },
    one.owner ? button("Kick…", "kick", one, { ...about, epoch: one.epoch }, "Hand over", [REASON],
      [`${worker(one.owner)} ends its running episodes and hands partition ${one.partition} over. Any worker that may serve it takes it, perhaps the same one.`, "Its instances pause for a moment. Nothing is lost."]) : "",
    ordered ? button("Online…", "online", one, about, "Take online", [], [`Workers serve partition ${one.partition} again, and its instances go on.`])
      : button("Offline…", "offline", one, about, "Take offline", [REASON], [`No worker serves partition ${one.partition} until somebody takes it online again.`, "Its instances stand still, and the Airflow tasks that wait for them wait on. Nothing is lost."], true));
}

function button(name, action, one, order, go, fields, says, danger = false) {
  return el("button", { class: `small${danger ? " danger" : ""}`, "data-key": `${action} ${one.partition}`, onclick: () => askFirst({
    title: `${name.replace("…", "")}: ${one.queue}`, says, fields, button: go, danger,
    act: (values) => send(`partition/${action}`, { ...order, conn: filter.conn, ...values }), done: ({ text }) => { tell(text); again(); } }) }, name);
}

function choose(owner) {
  filter.worker = owner;
  keepQuery(filter);
  again();
}

const again = refreshTable(() => ask("partitions", { conn: filter.conn }), show, body, place);
