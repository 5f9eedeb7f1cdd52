// The history of an instance: its newest events, which are loaded again and again, and earlier ones after a click.

import { ask, el, exactTime, fullTime, pretty, redraw, trouble } from "./page.js";

/** Return an object that shows a history in the element `place`: `show(answer)` gets each answer about the instance. */
export function historyOf(place) {
  const open = new Set();
  let last = null, older = [], gap = [], execution = null, more = null, busy = false;

  function show(answer) {
    if (answer.history.execution !== execution) [older, gap, more, execution] = [[], [], null, answer.history.execution];
    last = answer;
    paint();
  }

  /** Load the events before the oldest one that is shown. Events that are there do not change, so they are kept. */
  async function before() {
    const { id } = last.instance, wanted = execution;
    busy = true;
    paint();
    try {
      const part = await ask("instance/history", { id, conn: last.conn, before: oldest() });
      if (part.execution === wanted && wanted === execution) { older.push(...part.events); more = part.first; }
    } catch (error) { older.error = error; }
    busy = false;
    paint();
    place.querySelector("[data-key=older]")?.focus({ preventScroll: true });
  }

  const oldest = () => (older.length ? more : last.history.first);

  function paint() {
    const from = older.length ? older[0].n : -1;
    // while the instance goes on, the newest part moves away from the earlier ones: keep what lies between them
    const between = gap.filter((one) => one.n > from && one.n < last.history.first);
    gap = older.length ? [...last.history.events, ...between].filter((one) => one.n > from) : [];
    const events = older.length ? [...gap, ...older] : last.history.events;
    const scrolled = place.querySelector(".events")?.scrollTop ?? 0;
    const first = oldest(), { total } = last.history;
    redraw(place, el("h2", {}, "History"), el("div", { class: "scroll events", "data-key": "history", style: "max-height:640px;overflow-y:auto", tabindex: 0, role: "region", "aria-label": "History" },
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { class: "n" }, "#"), ...["Time", "Event", "What", ""].map((text) => el("th", {}, text)))), el("tbody", {}, events.flatMap(line)))),
      first > 0 ? el("div", { class: "foot" }, el("span", {}, `${events.length.toLocaleString("en")} of ${total.toLocaleString("en")} events`),
        el("button", { "data-key": "older", disabled: busy, onclick: before }, busy ? "loading…" : "Show earlier events")) : "",
      older.error ? trouble(older.error) : "");
    place.querySelector(".events").scrollTop = scrolled;
  }

  function line(event) {
    const shown = open.has(event.n);
    const toggle = () => { open[shown ? "delete" : "add"](event.n); paint(); };
    const row = el("tr", {}, el("td", { class: "n mute" }, event.n), el("td", { title: fullTime(event.time) }, exactTime(event.time)), el("td", {}, event.event), el("td", { class: "small now" }, event.what),
      el("td", { class: "n" }, event.payload ? el("button", { class: "small", style: "padding:0 7px", "data-key": `payload ${event.n}`, "aria-expanded": String(shown), "aria-label": `payload of event ${event.n}`, title: "payload", onclick: toggle }, shown ? "–" : "+") : ""));
    return shown ? [row, el("tr", { class: "payload" }, el("td", { colspan: 5 }, el("pre", { "data-key": `payload of ${event.n}` }, pretty(event.payload))))] : [row];
  }

  return { show };
}
