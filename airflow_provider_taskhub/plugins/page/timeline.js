// Draws the timeline of an instance as SVG.

import { duration, svg, worker } from "./page.js";

const LEFT = 250, RIGHT = 48, TOP = 34, ROW = 26, BAR = 15;
const TIMER = { fired: "timer fired", cancelled: "timer cancelled", waiting: "waits for a timer" };
const WAIT = { ended: "waited for the event", cancelled: "the event did not come", waiting: "waits for the event" };
const NAMES = { completed: "completed", failed: "failed", lost: "lost", running: "running", cancelled: "cancelled", cancelling: "cancelling", scheduled: "scheduled", waiting: "waiting", fired: "fired", ended: "ended", slot: "waits for a free slot" };

/** Return a colour for each worker. The workers are in the order of their first bars. */
export function workersOf(lanes) {
  const bars = lanes.flatMap((lane) => lane.bars).filter((bar) => bar.worker).sort((a, b) => a.start - b.start);
  return [...new Set(bars.map((bar) => bar.worker))];
}

export function colour(workers, worker) {
  const index = workers.indexOf(worker);
  return index < 0 ? "var(--idle)" : `var(--w${index % 8})`;
}

/** Return the drawing. `pick(task, attempt)` is called when a user selects a bar; `chosen` is "task/attempt". */
export function draw(timeline, { from, to, now, live, width, chosen, pick }) {
  const workers = workersOf(timeline.lanes);
  const span = Math.max(1, to - from), scale = (width - LEFT - RIGHT) / span;
  const x = (ms) => LEFT + Math.min(span, Math.max(0, ms - from)) * scale;
  const height = TOP + (timeline.lanes.length + 1) * ROW + 10;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Timeline of the instance" }, hatch());
  for (const tick of ticks(span)) {
    const at = LEFT + tick * scale;
    picture.append(svg("line", { x1: at, x2: at, y1: 26, y2: height, stroke: "var(--line)" }));
    if (!live || at < x(now) - 70 || at > x(now) + 4) picture.append(text(at + 3, 18, tickName(tick, span), "t")); // not beside the label "now"
  }
  picture.append(text(14, TOP + 14, "orchestrator"));
  for (const [start, end] of timeline.episodes)
    picture.append(svg("rect", { x: x(start), y: TOP + 3, width: Math.max(3, x(end ?? now) - x(start)), height: BAR, rx: 1.5, fill: "var(--text)" }));
  timeline.lanes.forEach((lane, index) => {
    const y = TOP + (index + 1) * ROW;
    picture.append(svg("g", {}, svg("text", { x: 14, y: y + 14, class: lane.bars.some((bar) => bar.worker) ? null : "t", "clip-path": "url(#names)" }, lane.label), title(lane.label)));
    for (const bar of lane.bars) picture.append(...rectangle(lane, bar, y + 3));
  });
  let free = -Infinity; // where the text of the mark before ends: a text that would cover it is left to the tooltip
  for (const mark of [...timeline.marks].sort((a, b) => a.time - b.time)) {
    const fill = mark.kind === "lost" ? "var(--bad)" : "var(--wait)", at = x(mark.time), left = at > width - 260;
    const said = mark.text.split(" ").map(worker).join(" "), wide = 8 + said.length * 6.5, begins = left ? at - wide : at;
    picture.append(svg("line", { x1: at, x2: at, y1: 22, y2: height, stroke: fill, "stroke-dasharray": "3 3" }, title(said)));
    if (begins < free) continue;
    picture.append(svg("text", { class: "t", x: at + (left ? -4 : 4), y: 30, "text-anchor": left ? "end" : "start", style: `fill:${fill}` }, said));
    free = begins + wide;
  }
  if (live) {
    const at = x(now);
    picture.append(svg("line", { x1: at, x2: at, y1: 22, y2: height, stroke: "var(--run)", "stroke-width": 1.5 }), svg("text", { class: "t", x: at - 4, y: 12, "text-anchor": "end", style: "fill:var(--run)" }, "now"));
  }
  return picture;

  function rectangle(lane, bar, y) {
    const start = x(bar.start), end = x(bar.end ?? (bar.until && bar.until < to ? bar.until : now)), wide = Math.max(3, end - start);
    const box = { x: start, y, width: wide, height: BAR, rx: 3 };
    const took = `${lane.label}${bar.try ? `, try ${bar.try}` : ""}${bar.attempt ? `, attempt ${bar.attempt}` : ""}: ${NAMES[bar.state] ?? bar.state}${bar.worker ? ` on ${worker(bar.worker)}` : ""}, ${duration((bar.end ?? now) - bar.start)}`;
    if (lane.kind === "timer" || lane.kind === "event" || bar.state === "scheduled" || bar.state === "slot" || (!bar.worker && bar.state === "cancelled")) {
      const said = lane.kind === "timer" ? TIMER[bar.state] ?? bar.state : lane.kind === "event" ? WAIT[bar.state] ?? bar.state : bar.state === "scheduled" ? "waits or runs" : bar.state === "slot" ? `${bar.end == null ? "waits" : "waited"} for a free slot` : "cancelled";
      const parts = [svg("rect", { ...box, fill: "none", stroke: "var(--wait)", "stroke-dasharray": "4 3" }, title(took))];
      if (wide > 110) parts.push(text(start + 6, y + 11.5, said, "t"));
      return parts;
    }
    const lost = bar.state === "lost", own = { failed: "var(--bad)", cancelled: "var(--off)" };
    // Nobody knows when an activity without a record has begun: its bar is its wait too, so only its end is red.
    const unrecorded = lane.kind === "activity" && !bar.worker && bar.state === "failed";
    const fill = lost ? "url(#lost)" : unrecorded ? "var(--idle)" : own[bar.state] ?? colour(workers, bar.worker);
    const task = bar.task ?? lane.task, on = `${task}/${bar.attempt}` === chosen;
    const partly = bar.state === "running" && bar.progress != null;
    const face = svg("rect", { ...box, fill, opacity: partly ? 0.35 : null, class: `pick${on ? " on" : ""}`, tabindex: 0, role: "button", "aria-label": took, "data-key": `bar ${task}/${bar.attempt}` }, title(took));
    face.addEventListener("click", () => pick(task, bar.attempt ?? null));
    face.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(task, bar.attempt ?? null); } });
    const parts = [face];
    if (unrecorded) parts.push(svg("rect", { ...box, x: end - Math.min(4, wide), width: Math.min(4, wide), fill: own.failed, "pointer-events": "none" }));
    if (partly) parts.push(svg("rect", { ...box, width: Math.max(2, wide * bar.progress), fill, "pointer-events": "none" }));
    const said = partly ? [bar.message, `${Math.round(bar.progress * 100)} %`].filter(Boolean).join(" · ") : [bar.try ? `try ${bar.try}` : "", bar.attempt > 1 ? `attempt ${bar.attempt}` : ""].filter(Boolean).join(", ");
    if (said && wide > 8 + said.length * 6 && !lost) parts.push(text(start + 6, y + 11.5, said, "in"));
    return parts;
  }
}

function hatch() {
  const pattern = svg("pattern", { id: "lost", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 6, height: 6, style: "fill:color-mix(in srgb, var(--bad) 18%, var(--bg))" }),
    svg("line", { x1: 0, x2: 0, y1: 0, y2: 6, stroke: "var(--bad)", "stroke-width": 2.5 }));
  const names = svg("clipPath", { id: "names" }, svg("rect", { x: 0, y: 0, width: LEFT - 10, height: "100%" })); // cuts long names, so that they do not run under a bar
  return svg("defs", {}, pattern, names);
}

const text = (x, y, said, kind) => svg("text", { x, y, class: kind || null }, said);
const title = (said) => svg("title", {}, said);

const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400].map((s) => s * 1000);

function ticks(span) {
  const step = STEPS.find((one) => span / one <= 10) ?? Math.ceil(span / 10 / 86400000) * 86400000;
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, index) => index * step);
}

function tickName(ms, span) {
  const s = ms / 1000;
  if (span < 1000) return `${Math.round(ms)} ms`;
  if (span < 180000) return `${Number(s.toFixed(1))} s`;
  if (span < 2 * 3600000) return `${Math.floor(s / 60)}:${String(Math.round(s % 60)).padStart(2, "0")}`;
  return span < 3 * 86400000 ? `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}` : `${Number((s / 86400).toFixed(1))} d`;
}
