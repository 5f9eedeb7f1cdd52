// The parent and the children of an instance, and why it stands still.

import { ask, base, duration, el, instanceHref, keepFocus, status, time, trouble } from "./page.js";

const TAB_NAMES = { quarantine: "Quarantine", partitions: "Partitions", workers: "Workers", limits: "Limits" };
const PAUSE = 10000;

/** The way to an instance: the list, its parent if it has one, then itself. */
export function path({ parent, conn }) {
  const list = el("a", { href: `${base}/taskhub/page/instances?${new URLSearchParams({ conn })}`, "data-key": "list" }, "Instances");
  return el("div", { class: "small mute" }, list, " ›", parent ? [" ",el("a", { class: "mono", href: instanceHref(parent.id, conn), "data-key": "parent", title: `parent: ${parent.name}, ${parent.status}` }, parent.id), " ›"] : "");
}

/** A note for each reason why the instance stands still, with the way out. `raise(name)` opens the dialog of an event. */
export function waits({ instance, conn, actions }, raise) {
  const faults = instance.waits.filter((one) => one.fault), shown = faults.length ? faults : instance.waits;
  const said = !faults.length && instance.custom_line ? [el("div", { class: "note said" }, instance.custom_line)] : [];
  return [...said, ...shown.map((one) => el("div", { class: `note ${one.fault ? "bad" : ""}`, "data-kind": one.kind }, el("div", {}, "waits: ", one.text),
    one.remedy || one.tab ? el("div", { class: "small mute" }, one.remedy, one.tab ? [one.remedy ? ", or look at " : "Look at ", el("a", { href: `${base}/taskhub/page/${one.tab}?${new URLSearchParams({ conn, ...(one.kind === "quarantine" ? { text: instance.id } : {}) })}`, "data-key": `tab of ${one.kind}` }, TAB_NAMES[one.tab])] : "") : "",
    actions.includes("raise-event") ? one.events.map((name) => el("button", { class: "small", style: "margin:6px 8px 0 0", "data-key": `raise ${name}`, onclick: () => raise(name) }, `Raise ${name}…`)) : ""))];
}

/**
 * Return an object that shows the children of an instance in the element `place`. They are loaded less often than the
 * instance, because the store may have to look through a long history to find them.
 */
export function childrenOf(place) {
  let starts = [-1], loaded = 0, asked = "", answer = null, execution = null;

  async function show({ instance, history, timeline, conn, time: now }) {
    const some = answer?.children.length || starts.length > 1 || timeline.first > 0 || timeline.lanes.some((lane) => lane.kind === "child");
    if (!some) { place.replaceChildren(); return; }
    if (execution !== history.execution) [starts, loaded, execution] = [[-1], 0, history.execution];
    const live = instance.ended == null || answer?.children.some((one) => one.status && one.ended == null);
    if (asked || (loaded && (!live || now - loaded < PAUSE))) return;
    await load(instance.id, conn, now);
  }

  async function load(id, conn, now) {
    const wanted = asked = `${id} ${starts.at(-1)} ${execution}`;
    try {
      const found = await ask("instance/children", { id, conn, after: starts.at(-1) });
      if (wanted !== asked) return;
      answer = found;
      loaded = found.time;
      keepFocus(() => paint(id, conn));
    } catch (error) { loaded = now; place.replaceChildren(el("h2", {}, "Children"), trouble(error)); } finally { if (wanted === asked) asked = ""; }
  }

  function paint(id, conn) {
    const { children, after } = answer;
    if (!children.length && starts.length === 1) { place.replaceChildren(); return; }
    const turn = (change) => { change(); asked = ""; load(id, conn, loaded); };
    place.replaceChildren(el("h2", {}, "Children"), el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Status", "Instance", "Orchestrator", "Started"].map((text) => el("th", {}, text)), el("th", { class: "n" }, "Duration"), el("th", {}, "Now"))),
      el("tbody", {}, children.map((one) => el("tr", {}, el("td", {}, one.status ? status(one.status) : el("span", { class: "mute", title: "It has not begun, or it was purged" }, "not there")),
        el("td", { class: "id" }, one.status ? el("a", { class: "mono", href: instanceHref(one.id, conn), "data-key": `child ${one.id}` }, one.id) : el("span", { class: "mono" }, one.id)),
        el("td", {}, one.name), el("td", {}, time(one.created)), el("td", { class: "n" }, one.created == null || one.status === "Pending" ? "" : duration((one.ended ?? answer.time) - one.created)),
        el("td", { class: "now small mute" }, one.now ?? "")))))),
      after != null || starts.length > 1 ? el("div", { class: "foot" }, el("span", {}, `children ${(starts.length - 1) * 25 + 1} to ${(starts.length - 1) * 25 + children.length}`), el("span", {},
        el("button", { "data-key": "children back", disabled: starts.length === 1, onclick: () => turn(() => starts.pop()) }, "‹ Previous"), " · ",
        el("button", { "data-key": "children on", disabled: after == null, onclick: () => turn(() => starts.push(after)) }, "Next ›"))) : "");
  }

  return { show };
}
