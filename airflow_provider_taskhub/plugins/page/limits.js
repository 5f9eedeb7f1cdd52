// The limits of the hub: how many activities or instances run at once, how many wait, and who runs.

import { askFirst, REASON, tell, told } from "./dialog.js";
import { ask, bar, base, el, ghosts, keepFocus, query, refreshTable, send, time } from "./page.js";

const HEADS = ["Limit of", "Name", "At most", "Running", "Waiting", "Oldest waits since", "Who runs", ""];
const NUMBERS = ["At most", "Running", "Waiting"];
const KINDS = { activity: "activities", rate: "a rate", instances: "instances" };
const main = document.getElementById("main");
const conn = query.get("conn") ?? "";
const body = el("tbody", {}, ghosts(3, [80, 160, 60, 60, 60, 90, 200, 60]));
const place = el("div", {}, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, HEADS.map((name) => el("th", { class: NUMBERS.includes(name) ? "n" : "" }, name)))), body)));
const none = el("div", { class: "empty", hidden: true }, el("b", {}, "The hub has no limit."), "An activity gets one in its code: @app.activity(limit=2) or rate=\"10/m\". Instances get one from their task: max_active_instances=2");
main.replaceChildren(el("div", { class: "head", style: "margin:0 0 14px" }, el("h1", {}, "Limits")), told, place, none);

function show(answer) {
  bar(answer);
  place.hidden = !answer.limits.length;
  none.hidden = Boolean(answer.limits.length);
  keepFocus(() => body.replaceChildren(...answer.limits.map(line)));
}

function line(one) {
  const instance = (id) => el("a", { href: `${base}/taskhub/page/instance?${new URLSearchParams({ ...(conn ? { conn } : {}), id })}`, "data-key": `${one.kind} ${one.name} ${id}` }, id);
  const who = one.ids === null ? el("span", { class: "mute" }, "for administrators") : [one.ids.map((id) => el("div", {}, instance(id))), one.more ? el("div", { class: "mute" }, `and ${one.more} more`) : ""];
  return el("tr", {}, el("td", {}, KINDS[one.kind]), el("td", { class: "code" }, one.name),
    el("td", { class: "n" }, one.shown, one.by ? el("div", { class: "small mute" }, `ordered by ${one.by}; declared: ${one.declared}`) : ""),
    el("td", { class: "n" }, one.running), el("td", { class: "n" }, one.kind === "instances" && one.waiting >= 1000 ? "1,000 or more" : one.waiting),
    el("td", {}, time(one.oldest)), el("td", { class: "small" }, who), el("td", { class: "n" }, change(one), one.by ? lift(one) : ""));
}

const wish = (one) => one.kind === "rate" ? "How many may begin in the time of the rate" : "How many may run at once";

function whole(one, text) {
  if (!/^[0-9]+$/.test(text)) throw new Error(`${wish(one)}: give a whole number from 1 on.`);
  return Number(text);
}

function order(one, number, values) {
  return send("limit/set", { name: one.name, kind: one.kind, number, conn, ...values });
}

const done = ({ text }) => { tell(text); again(); };

function change(one) {
  const field = { name: "number", label: wish(one), kind: "text", required: true, value: String(one.limit) };
  return el("button", { class: "small", "data-key": `change ${one.kind} ${one.name}`, onclick: () => askFirst({
    title: `Change the limit: ${one.name}`, says: ["The number counts in the whole hub, in place of the declared one, until somebody lifts the order.", "What runs goes on, also above a lower number."],
    fields: [field, REASON], button: "Change", act: ({ number, ...values }) => order(one, whole(one, number), values), done }) }, "Change…");
}

function lift(one) {
  return el("button", { class: "small", "data-key": `lift ${one.kind} ${one.name}`, onclick: () => askFirst({
    title: `Lift the order: ${one.name}`, says: [`The declared number, ${one.declared}, counts again.`], fields: [REASON], button: "Lift the order", act: (values) => order(one, null, values), done }) }, "Lift…");
}

const again = refreshTable(() => ask("limits", { conn }), show, body, place);
