// Two runs of one orchestrator side by side: their facts, where their inputs and outputs differ, and their calls.

import { askFirst } from "./dialog.js";
import { airflowLink, ask, bar, base, duration, el, instanceHref, pretty, redraw, refresh, runPath, status, time, trouble } from "./page.js";

export const compareHref = (id, other, conn) => `${base}/taskhub/page/instance?${new URLSearchParams({ id, compare: other, ...(conn ? { conn } : {}) })}`;

/** The button that asks for another run. It offers the newest runs of the same orchestrator that the list finds. */
export function compareButton({ instance, conn }) {
  return el("button", { "data-key": "compare", onclick: async () => {
    const known = el("datalist", { id: "runs" });
    askFirst({ title: `Compare: ${instance.id}`, says: [`With another run of ${instance.name}.`], button: "Compare",
      fields: [{ name: "other", label: "Instance id of the other run", kind: "text", required: true, list: known }],
      act: ({ other }) => ask("compare", { id: instance.id, other, conn }), done: ({ other }) => { location.href = compareHref(instance.id, other.id, conn); } });
    try {
      const found = await ask("instances", { conn, text: instance.name, window: "month", limit: 50 });
      const runs = found.rows.filter((row) => row.name === instance.name && row.id !== instance.id);
      known.replaceChildren(...runs.map((row) => el("option", { value: row.id }, `${row.status}, started ${new Date(row.created).toLocaleString("sv-SE")}`)));
    } catch { /* an id can be written without a list */ }
  } }, "Compare…");
}

/** Show the comparison of two runs in `main`, and load it again while one of them runs. */
export function compare(main, id, other, conn) {
  let only = false, last = null, over = false;
  const turn = refresh(async () => (over ? last : ask("compare", { id, other, conn })), (answer) => {
    last = answer;
    over = answer.one.ended != null && answer.other.ended != null;
    bar(answer);
    paint();
  }, (error) => {
    if (last && (!error.code || error.code >= 500)) return false;
    main.replaceChildren(trouble(error));
    return error.code === 404 || error.code === 422;
  });

  function paint() {
    const { one, other: second, calls } = last, runs = [one, second];
    document.title = `${one.id} and ${second.id} · TaskHub`;
    const shown = only ? calls.filter(differs) : calls;
    redraw(main,
      el("div", { class: "head" }, el("div", {}, el("div", { class: "small mute" }, el("a", { href: `${base}/taskhub/page/instances?${new URLSearchParams({ conn: last.conn })}`, "data-key": "list" }, "Instances"), " › ",
        el("a", { class: "mono", href: instanceHref(one.id, last.conn), "data-key": "one above" }, one.id), " ›"), el("h1", {}, `Two runs of ${one.name}`)),
        el("div", { class: "actions" }, el("button", { "data-key": "swap", onclick: () => { location.href = compareHref(second.id, one.id, last.conn); } }, "Swap"))),
      el("div", { class: "scroll" }, el("table", { class: "compare" }, el("thead", {}, el("tr", {}, el("th", { style: "width:180px" }), runs.map((run, at) => el("th", {}, el("a", { class: "mono", href: instanceHref(run.id, last.conn), "data-key": `run ${at}` }, run.id))))),
        el("tbody", {}, facts(runs)))),
      ...texts("Input", last.input, runs), ...texts("Output", last.output, runs),
      el("div", { class: "head", style: "margin:26px 0 8px" }, el("h2", { style: "margin:0" }, "Activities and children"),
        el("label", { class: "small" }, el("input", { type: "checkbox", checked: only, "data-key": "only", onchange: (event) => { only = event.target.checked; paint(); } }), ` only the ${calls.filter(differs).length} of ${calls.length} that differ`)),
      shown.length ? el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "Name"), el("th", {}, "First run"), el("th", { class: "n" }, "Duration"), el("th", {}, "Other run"), el("th", { class: "n" }, "Duration"), el("th", { class: "n" }, "Difference"), el("th", {}, "Input"), el("th", {}, "Output"))), el("tbody", {}, shown.map(line))))
        : el("div", { class: "mute" }, calls.length ? "They do not differ." : "Neither run has started an activity or a child."),
      last.events ? el("div", { class: "foot" }, `Only the first ${last.events.toLocaleString("en")} events of each history are compared.`) : "");
  }

  const took = (run) => (run.created == null ? null : (run.ended ?? last.time) - run.created);
  const spent = (call) => (call ? (call.ended ?? last.time) - call.begun : null);

  function facts(runs) {
    const row = (name, ...cells) => el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell) => el("td", {}, cell)));
    const longer = took(runs[0]) != null && took(runs[1]) != null ? change(took(runs[1]) - took(runs[0])) : "";
    return [row("Status", ...runs.map((run) => status(run.status))), row("Started", ...runs.map((run) => time(run.created))),
      row("Duration", duration(took(runs[0]) ?? 0), [duration(took(runs[1]) ?? 0), " ", el("span", { class: "mute" }, longer)]),
      runs.some((run) => run.version) ? row("Version", ...runs.map((run) => run.version || "–")) : "",
      runs.some((run) => run.airflow) ? row("Airflow", ...runs.map((run) => (run.airflow ? airflowLink(runPath(run.airflow), `${run.airflow.dag} ▸ ${run.airflow.run}`) : "–"))) : "",
      runs.some((run) => run.failure) ? row("Error", ...runs.map((run) => (run.failure ? el("span", { class: "error" }, run.failure.headline) : "–"))) : ""];
  }

  /** A table of the places where two JSON texts differ. */
  function texts(name, places) {
    if (places === null) return [el("h2", {}, name), el("div", { class: "mute" }, "You may not read it: this needs the right to read task instances of this DAG.")];
    if (!places.length) return [el("h2", {}, name), el("div", { class: "mute" }, "No difference.")];
    const value = (text) => el("td", { class: "now" }, text === null ? el("span", { class: "mute" }, "not there") : el("code", { class: "mono" }, pretty(text)));
    return [el("h2", {}, name), el("div", { class: "scroll" }, el("table", { class: "compare" }, el("thead", {}, el("tr", {}, el("th", { style: "width:180px" }, "Where"), el("th", {}, "First run"), el("th", {}, "Other run"))),
      el("tbody", {}, places.map((one) => el("tr", {}, el("th", { scope: "row", class: "mono" }, one.path || "(all)"), value(one.one), value(one.other))))))];
  }

  const differs = (call) => !call.one || !call.other || call.one.outcome !== call.other.outcome || call.one.tries !== call.other.tries || call.same_input === false || call.same_result === false;

  function line(call, at) {
    const done = (one) => [el("td", {}, one ? [el("span", { class: `s ${{ completed: "ok", failed: "bad", open: "run", cancelled: "off" }[one.outcome]}` }, el("i", { "aria-hidden": "true" }), one.outcome === "open" ? "not ended" : one.outcome), one.tries > 1 ? el("span", { class: "small mute" }, ` after ${one.tries} tries`) : ""] : el("span", { class: "mute" }, "not called")), el("td", { class: "n" }, one ? duration(spent(one)) : "")];
    const same = (what, equal, one, other) => el("td", { class: "small now" }, equal === null ? "" : equal ? el("span", { class: "mute" }, "same") : el("details", { "data-key": `${what} differs` }, el("summary", { "data-key": what }, "differs"), el("pre", {}, pretty(one ?? "")), el("pre", { style: "margin-top:4px" }, pretty(other ?? ""))));
    return el("tr", {}, el("td", {}, call.name, call.kind === "child" ? el("span", { class: "small mute" }, " child") : ""), done(call.one), done(call.other),
      el("td", { class: "n" }, call.one && call.other ? change(spent(call.other) - spent(call.one)) : ""), same(`input ${at}`, call.same_input, call.one?.input, call.other?.input), same(`result ${at}`, call.same_result, call.one?.result, call.other?.result));
  }
  return turn;
}

const change = (ms) => (Math.abs(ms) < 1 ? "±0" : `${ms > 0 ? "+" : "−"}${duration(Math.abs(ms))}`);
