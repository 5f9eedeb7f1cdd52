// Orders to all instances that match the list's filter. The page sends them in batches, one after another, and keeps in
// the browser what is left, so that it can go on after a reload.

import { REASON } from "./dialog.js";
import { ask, el, instanceHref, send } from "./page.js";

const KEPT = "taskhub.batch";
const SHOWN = 10;
const ORDERS = {
  terminate: { name: "Terminate", done: "terminated", danger: true, says: "Each instance and its children end now, and so do their activities. Nothing is cleaned up, and a clean-up that runs already is cut off. An Airflow task that waits for one of them fails, and its retries start the instance again: to end them for good, mark the tasks failed in Airflow." },
  suspend: { name: "Suspend", done: "suspended", says: "The orchestrators do not run before somebody resumes them. Running activities continue, and time limits of Airflow's tasks go on." },
  resume: { name: "Resume", done: "resumed", says: "The instances go on, with everything that arrived while they were suspended." },
  repair: { name: "Repair", done: "repaired", says: "Each instance goes on from before its failure: what failed runs again, what completed does not. Airflow clears its task, and what has failed after it, in your name. The tasks wait for the instances, and the DAG runs go on. A task that has another input by now computes everything again." },
  rewind: { name: "Rewind", done: "rewound", says: "Each instance goes on from before its failure: what failed runs again, what completed does not. No Airflow task waits for them: to let DAGs go on, choose Repair." },
  restart: { name: "Restart", done: "restarted", says: "Each orchestrator starts again from the beginning, with the same id, input, version and tags. History and result of the runs that ended are replaced. No Airflow task waits for them: to let DAGs go on, clear their tasks in Airflow instead." },
  purge: { name: "Purge", done: "deleted", danger: true, says: "Each instance is deleted with its history, payloads, activity records and logs. This cannot be undone. A task of Airflow that has not read the result yet fails." },
};
const many = (count) => `${count.toLocaleString("en")} ${count === 1 ? "instance" : "instances"}`;

/**
 * Put the button for orders into `place`, and the progress of an order into `panel`. Users who may only look get no
 * button. `filter()` returns the list's filter, `again` loads the list.
 */
export async function orders(place, panel, filter, again) {
  let known;
  try { known = await ask("orders"); } catch { return; /* the list shows the same error */ }
  if (!known.orders.length) return;
  const button = el("button", { "data-key": "orders", onclick: () => choose(known.orders, filter(), (job) => run({ ...job, most: known.most })) }, "Change what matches…");
  place.replaceChildren(button);
  const left = stored();
  if (left) show(panel, left, false);

  async function run(job) {
    let stopped = false;
    button.disabled = true;
    const stop = () => { stopped = true; };
    keep(job);
    show(panel, job, true, stop);
    panel.querySelector("[data-key=stop]").focus();
    try {
      while (job.targets.length && !stopped) {
        const targets = job.targets.slice(0, job.most);
        const { results } = await send(`instances/${job.action}`, { conn: job.conn, reason: job.reason, targets });
        job.done += results.filter((one) => one.code === 200).length;
        job.refused.push(...results.filter((one) => one.code !== 200));
        job.targets = job.targets.slice(targets.length);
        keep(job);
        show(panel, job, true, stop);
      }
      job.error = "";
    } catch (error) { job.error = error.message; }
    button.disabled = false;
    show(panel, job, false);
    again();
  }

  function show(at, job, running, stop) {
    const { name, done } = ORDERS[job.action], handled = job.done + job.refused.length, all = handled + job.targets.length;
    const focus = document.activeElement?.dataset?.key, open = at.querySelector("details")?.open;
    const text = `${name}: ${handled.toLocaleString("en")} of ${many(all)} handled, ${job.done.toLocaleString("en")} ${done}, ${job.refused.length.toLocaleString("en")} refused`;
    const close = () => { keep(null); at.replaceChildren(); button.focus(); };
    at.replaceChildren(el("div", { class: `note ${job.error || job.refused.length ? "" : "done"}`, id: "batch", role: "group", "aria-label": "Progress of the order" },
      el("div", { role: "status" }, text, job.error ? `. It stopped: ${job.error}` : !running && job.targets.length ? ". It stopped." : ""),
      el("progress", { max: all, value: handled, "aria-label": text }),
      el("div", { class: "actions" },
        running ? el("button", { "data-key": "stop", onclick: (event) => { event.target.disabled = true; stop(); } }, "Stop") : "",
        !running && job.targets.length ? el("button", { class: "primary", "data-key": "go on", onclick: () => run(job) }, `Go on with ${many(job.targets.length)}`) : "",
        running ? "" : el("button", { "data-key": "close", onclick: close }, job.targets.length ? "Forget the rest" : "close")),
      job.refused.length ? el("details", { open, style: "margin-top:8px" }, el("summary", { class: "small", "data-key": "refused" }, `refused (${job.refused.length.toLocaleString("en")})`),
        el("ul", { class: "small" }, job.refused.map((one) => el("li", {}, el("a", { class: "mono", href: instanceHref(one.id, job.conn) }, one.id), `: ${one.text}`)))) : ""));
    const wanted = running ? "stop" : job.targets.length ? "go on" : "close";
    if (focus === "stop" || focus === "go on") at.querySelector(`[data-key="${wanted}"]`)?.focus();
  }
}

/** Open the dialog: which order, to which instances, and why. `done` gets the job after the user has confirmed it. */
function choose(names, filter, done) {
  const which = el("select", { "aria-label": "Order" }, names.map((name) => el("option", { value: name }, ORDERS[name].name)));
  const says = el("p"), found = el("div", { role: "status" }), error = el("div", { class: "refused", role: "alert" });
  const reason = el("input", { type: "text", maxlength: 1000 });
  const go = el("button", { type: "submit" });
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); dialog.close(); done({ action: which.value, conn: filter.conn, reason: reason.value.trim(), targets, done: 0, refused: [] }); } },
    el("h2", { id: "asked", class: "code" }, "All instances that match the filter"), el("label", {}, "Order", which), says, found,
    el("label", {}, REASON.label, reason), error, el("div", { class: "buttons" }, cancel, go));
  const dialog = el("dialog", { "aria-labelledby": "asked" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  let targets = [], turn = 0;

  async function count() {
    const own = (turn += 1), action = which.value, order = ORDERS[action];
    says.textContent = order.says;
    go.className = order.danger ? "danger" : "primary";
    go.disabled = true;
    go.textContent = order.name;
    error.textContent = "";
    found.replaceChildren("Looking for the instances…");
    let first = null;
    const read = [];
    try {
      for (let after = ""; after !== null && own === turn && dialog.isConnected;) {
        const part = await ask("targets", { ...filter, action, after });
        first ??= part;
        read.push(...part.targets);
        after = part.after;
      }
    } catch (wrong) { if (own === turn) { found.replaceChildren(); error.textContent = wrong.message; } return; }
    if (own !== turn) return;
    targets = read;
    const other = first.matching - read.length;
    found.replaceChildren(el("p", {}, el("b", {}, many(read.length)), ` of ${first.matching.toLocaleString("en")} that match the filter`, other > 0 ? `. The other ${other.toLocaleString("en")} stay as they are: their status does not allow the order${first.forbidden ? `, or you may not change them (${first.forbidden.toLocaleString("en")})` : ""}.` : "."),
      first.reading != null ? el("p", {}, `More instances may match: the hub is still being read (${many(first.reading)} so far). Repeat the order afterwards.`)
        : first.capped ? el("p", {}, "More instances may match: the list does not have the oldest instances of this hub. Repeat the order afterwards.") : "",
      read.length ? el("ul", { class: "small mono" }, read.slice(0, SHOWN).map((one) => el("li", {}, `${one.id} (${one.status})`)), read.length > SHOWN ? el("li", {}, `and ${(read.length - SHOWN).toLocaleString("en")} more`) : "") : "");
    go.textContent = `${order.name} ${many(read.length)}`;
    go.disabled = !read.length;
  }

  which.addEventListener("change", count);
  document.body.append(dialog);
  dialog.showModal();
  which.focus();
  count();
}

// --- what is left, in the browser's storage: it may be full or forbidden, then only a reload loses it

function keep(job) {
  try { if (job?.targets.length) sessionStorage.setItem(KEPT, JSON.stringify(job)); else sessionStorage.removeItem(KEPT); } catch { /* not kept */ }
}

function stored() {
  try { return JSON.parse(sessionStorage.getItem(KEPT) ?? "null"); } catch { return null; }
}
