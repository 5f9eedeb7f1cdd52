// Asks before something is changed: a dialog says what will happen, and stays open with the server's text if it is refused.

import { el } from "./page.js";

/**
 * Open the dialog. `act` gets the values of the fields by name and sends the order; what it returns goes to `done`.
 * A field is { name, label, kind: "text" | "json" | "check", required, value, list }. `list` is a datalist
 * with values that the user may choose.
 */
export function askFirst({ title, says, fields = [], button, danger = false, act, done }) {
  const inputs = fields.map((field) => ({ ...field, input: input(field) }));
  const error = el("div", { class: "refused", role: "alert" });
  const go = el("button", { type: "submit", class: danger ? "danger" : "primary" }, button);
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); send(); } },
    el("h2", { id: "asked", class: "code" }, title), says.filter(Boolean).map((text) => el("p", {}, text)),
    inputs.map(({ label, kind, input, list }) => el("label", { class: kind }, kind === "check" ? [input, " ", label] : [label, input, list])),
    error, el("div", { class: "buttons" }, cancel, go));
  const dialog = el("dialog", { "aria-labelledby": "asked" }, form);
  const opener = document.activeElement?.dataset?.key;
  dialog.addEventListener("close", () => {
    dialog.remove();
    // the page may have drawn the button again meanwhile: the browser gives the focus back only to the old button
    if (opener && document.activeElement === document.body) document.querySelector(`[data-key="${CSS.escape(opener)}"]`)?.focus({ preventScroll: true });
  });

  async function send() {
    const values = {};
    try {
      for (const { name, kind, label, input } of inputs) values[name] = value(kind, label, input);
    } catch (wrong) { error.textContent = wrong.message; return; }
    go.disabled = true;
    error.textContent = "";
    try {
      const answer = await act(values);
      dialog.close();
      done(answer);
    } catch (refused) {
      error.textContent = refused.message;
      go.disabled = false;
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  (inputs.find(({ kind, value }) => kind !== "check" && !value)?.input ?? cancel).focus();
}

function input({ kind, required, value, list }) {
  if (kind === "check") return el("input", { type: "checkbox" });
  if (kind === "json") return el("textarea", { rows: 4, spellcheck: "false", class: "mono" });
  return el("input", { type: "text", required, value, maxlength: 1000, list: list?.id, autocomplete: list ? "off" : null });
}

function value(kind, label, field) {
  if (kind === "check") return field.checked;
  if (kind !== "json") return field.value.trim();
  if (!field.value.trim()) return null;
  try { return JSON.parse(field.value); } catch (wrong) { throw new Error(`${label}: this is no JSON value. A text needs quotation marks. (${wrong.message})`); }
}

/** A field for the reason of an order. */
export const REASON = { name: "reason", label: "Reason (others see it, with your name)", kind: "text" };

/** The line that says what the last order has done; empty before the first one. */
export const told = el("div", { id: "told", role: "status" });
export const tell = (text) => told.replaceChildren(text ? el("div", { class: "note done" }, text, " ", el("button", { class: "small", onclick: () => tell("") }, "close")) : "");
