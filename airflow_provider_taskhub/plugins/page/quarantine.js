// The messages that no worker could process: what they were for, the cause, and the way out.

import { askFirst, tell, told } from "./dialog.js";
import { ask, bar, el, ghosts, instanceHref, keepFocus, keepQuery, query, refreshTable, send, time } from "./page.js";

const HEADS = ["Since", "Instance", "Queue", "Deliveries", "Cause", ""];
const main = document.getElementById("main");
const filter = { conn: query.get("conn") ?? "", text: query.get("text") ?? "" };
const search = el("input", { type: "search", placeholder: "Instance, queue or cause", value: filter.text, "aria-label": "Filter by instance, queue or cause" });
const note = el("div");
const body = el("tbody", {}, ghosts(3, [70, 200, 110, 40, 260, 110]));
const table = el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, HEADS.map((name) => el("th", { class: name === "Deliveries" ? "n" : "" }, name)))), body));
const none = el("div", { class: "empty", hidden: true });
const place = el("div", {}, el("div", { class: "chips" }, search), note, table, none);
main.replaceChildren(el("div", { class: "head", style: "margin:0" }, el("h1", {}, "Quarantine")), told, place);
const open = new Set();
let last = null;

function show(answer) {
  last = answer;
  bar(answer);
  const wanted = filter.text.toLowerCase();
  const found = answer.messages.filter((one) => [one.instance, one.queue, one.cause].some((text) => text.toLowerCase().includes(wanted)));
  note.replaceChildren(answer.more ? el("div", { class: "note" }, `Only ${answer.messages.length} messages are shown, there are more. The command taskhub quarantine list shows all of them.`) : "");
  table.hidden = !found.length;
  none.hidden = Boolean(found.length);
  none.replaceChildren(el("b", {}, answer.messages.length ? "No message matches." : "Nothing is in quarantine."), answer.messages.length ? "Choose another text." : "Messages that no worker can process appear here.");
  keepFocus(() => body.replaceChildren(...found.map(line)));
}

function line(one) {
  const rest = one.cause.split("\n").length > 1 || one.cause.length > 200;
  return el("tr", {}, el("td", {}, time(one.since)),
    el("td", { class: "id" }, one.instance ? el("a", { class: "mono", href: instanceHref(one.instance, filter.conn), "data-key": `instance ${one.id}` }, one.instance) : el("span", { class: "mute" }, "cannot be read"), one.stuck ? el("div", { class: "small bad" }, "the whole instance: its orchestrator does not end") : ""),
    el("td", { class: "mono" }, one.queue), el("td", { class: "n" }, one.deliveries),
    el("td", { class: "now small" }, rest ? el("details", { open: open.has(one.id), ontoggle: (event) => open[event.target.open ? "add" : "delete"](one.id) }, el("summary", { "data-key": `cause ${one.id}` }, one.cause.split("\n")[0].slice(0, 200)), el("pre", {}, one.cause)) : one.cause),
    el("td", { class: "n" }, el("span", { class: "actions" },
      button("Put back…", "put-back", one, "Put back", [one.stuck ? "All messages of this instance go back into their queue together." : "The message goes back into its queue.", "Fix the cause first: otherwise it comes back here, and a worker may end again."]),
      button("Drop…", "drop", one, "Delete", ["The message is deleted: no worker processes it. An instance that needs it waits for ever. This cannot be undone."], true))));
}

function button(name, action, one, go, says, danger = false) {
  return el("button", { class: `small${danger ? " danger" : ""}`, "data-key": `${action} ${one.id}`, onclick: () => askFirst({
    title: `${name.replace("…", "")}: message ${one.instance ? `for ${one.instance}` : one.id}`, says, button: go, danger,
    act: () => send(`message/${action}`, { id: one.id, conn: filter.conn }), done: ({ text }) => { tell(text); again(); } }) }, name);
}

search.addEventListener("input", () => { filter.text = search.value; keepQuery(filter); if (last) show(last); });

const again = refreshTable(() => ask("quarantine", { conn: filter.conn }), show, body, place);
