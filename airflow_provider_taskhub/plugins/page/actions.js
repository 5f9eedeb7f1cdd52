// The buttons of an instance, and what each of them says before it does something.

import { askFirst, REASON, tell } from "./dialog.js";
import { base, el, instanceHref, send } from "./page.js";

const NO_TASK = "No Airflow task waits for this instance any more. To let the DAG go on, clear the task in Airflow, or choose Repair.";
const REPEAT = (order) => `The last ${order} is perhaps incomplete, because the connection to the store broke: this completes it. If it is complete, nothing changes.`;
const ACTIONS = {
  "raise-event": { name: "Raise event…", button: "Send the event", fields: [{ name: "name", label: "Name of the event", kind: "text", required: true }, { name: "data", label: "Data: a JSON value, or nothing", kind: "json" }],
    says: () => ["The orchestrator receives the event now, or when it waits for it."] },
  suspend: { name: "Suspend…", button: "Suspend", fields: [REASON],
    says: (task) => ["Nothing begins before somebody resumes the instance. Running activities continue.", task && "The Airflow task goes on waiting, and its time limits go on."] },
  resume: { name: "Resume…", button: "Resume", fields: [REASON], says: () => ["The instance goes on, with everything that arrived while it was suspended."] },
  terminate: { name: "Terminate…", button: "Terminate", danger: true, fields: [REASON],
    says: (task, status) => status === "Failed" ? ["The activities of the failed instance that still run end now."] : ["The instance and its children end now, and so do their activities. Nothing is cleaned up, and a clean-up that runs already is cut off.",
      task && "The Airflow task that waits for it fails. If the task has retries left, a retry starts the instance again: to end it for good, mark the task failed in Airflow."] },
  repair: { name: "Repair…", button: "Repair", fields: [REASON],
    says: () => ["The instance goes on from before its failure: what failed runs again, what completed does not. Airflow clears the task, and what has failed after it, in your name. The task waits for the instance, and the DAG run goes on.",
      "If the task has another input by now, it computes everything again."] },
  rewind: { name: "Rewind…", button: "Rewind", fields: [REASON], says: (task, status) => status === "Pending" ? [REPEAT("rewind")] : ["The instance goes on from before its failure: what failed runs again, what completed does not.", task && NO_TASK] },
  restart: { name: "Restart…", button: "Restart", fields: [{ name: "new_id", label: "with a new id: keep this instance and its history", kind: "check" }],
    says: (task, status) => status === "Pending" ? [REPEAT("restart")] : ["The orchestrator starts again from the beginning, with the same input, version and tags. Without a new id, the history and the result of this run are replaced.", task && NO_TASK] },
  purge: { name: "Purge…", button: "Delete", danger: true,
    says: (task) => ["The instance is deleted with its history, payloads, activity records and logs. Its children stay. This cannot be undone.",
      task && "If its Airflow task has not read the result yet, the task fails. A retry starts from the beginning."] },
};

/** Return the buttons for the actions that the server names. `again` loads the data of the page. */
export function buttons(shown, again) {
  return el("div", { class: "actions" }, shown.actions.map((action) => {
    const { name, danger } = ACTIONS[action];
    return el("button", { class: danger ? "danger" : "", "data-key": action, onclick: () => open(action, shown, again) }, name);
  }));
}

/** Open the dialog that raises the event with this name. */
export const raise = (shown, again, name) => open("raise-event", shown, again, { name });

function open(action, { instance, conn }, again, values = {}) {
  const { name, button, fields = [], says, danger } = ACTIONS[action];
  const order = { id: instance.id, conn, execution: instance.execution, status: instance.status };
  const done = (answer) => {
    if (action === "purge") { location.href = `${base}/taskhub/page/instances?${new URLSearchParams({ conn })}`; return; }
    if (answer.id !== instance.id) { location.href = instanceHref(answer.id, conn); return; }
    tell(answer.text);
    again();
  };
  askFirst({ title: `${name.replace("…", "")}: ${instance.id}`, says: says(instance.airflow, instance.status), fields: fields.map((field) => ({ ...field, value: values[field.name] })), button, danger,
    act: (filled) => send(`instance/${action}`, { ...order, ...filled }), done });
}
