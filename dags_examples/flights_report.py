"""Writes the report of the flights example: one HTML page with charts as inline SVG. It loads no other files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any
from uuid import uuid4

Row = Mapping[str, Any]
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WEATHER = ("fair", "freezing", "strong wind", "rain or snow", "low visibility", "no record")
AGES = ("under 5", "5 to 9", "10 to 14", "15 to 19", "20 and more", "unknown")
BLUE, ORANGE, RED = "var(--blue)", "var(--orange)", "var(--red)"


def publish(folder: Path) -> dict[str, Any]:
    """Write ``report.html`` into the folder of a run. A second call writes the same page again.

    :param folder: the folder of the run, which contains ``year/answer.json``.
    :returns: the paths of the page and of the Parquet files, and the size of the page in bytes.
    """
    text = page(json.loads((folder / "year" / "answer.json").read_text(encoding="utf-8")))
    target, attempt = folder / "report.html", folder / f".report-{uuid4().hex}"
    attempt.write_text(text, encoding="utf-8")
    os.replace(attempt, target)
    return {"html": str(target), "parquet": str(folder / "year"), "bytes": len(text.encode())}


def page(answer: Row) -> str:
    """Return the HTML page. :param answer: the content of ``answer.json``, which ``flights_spark.year`` wrote."""
    totals, by = answer["totals"], answer["by"]
    rejected = sum(answer["rejected"].values())
    cards = "".join(
        f'<div class="card"><b>{value}</b><span>{label}</span></div>'
        for value, label in (
            (f"{totals['flights']:,}", "flights"),
            (_minutes(totals["mean_arr_delay"]), "mean arrival delay"),
            (f"{totals['on_time_share']:.1%}", "on time"),
            (f"{totals['cancelled'] / max(1, totals['flights']):.1%}", "cancelled"),
            (f"{rejected:,}", "rows rejected"),
        )
    )
    template = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return template.substitute(
        year=answer["year"],
        months=answer["months"],
        cards=cards,
        monthly=_columns(by["months"], lambda r: MONTHS[r["month"] - 1]),
        heat=_heat(by["hours_months"]),
        carriers=_bars(
            sorted(by["carriers"], key=lambda r: -r["on_time_share"]),
            lambda r: str(r["name"] or r["carrier"]),
            "on_time_share",
            lambda v: f"{v:.1%}",
        ),
        routes=_bars(
            answer["worst_routes"],
            lambda r: f"{r['origin']} → {r['dest']}, {r['name']}",
            "mean_arr_delay",
            lambda v: f"{v:.1f} min",
            RED,
        ),
        weather=_bars(
            _ordered(by["weather"], "weather", WEATHER), lambda r: r["weather"], "mean_arr_delay", _minutes, ORANGE
        ),
        ages=_bars(_ordered(by["ages"], "age", AGES), lambda r: r["age"], "mean_arr_delay", _minutes, ORANGE),
        rejected="".join(f"<tr><td>{escape(k)}<td>{v:,}" for k, v in answer["rejected"].items()) or "<tr><td>none<td>0",
    )


def _minutes(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} min"


def _ordered(rows: Iterable[Row], key: str, order: Sequence[str]) -> list[Row]:
    return sorted(rows, key=lambda r: order.index(r[key]))


def _text(x: float, y: float, text: str, *, anchor: str = "start", cls: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{cls}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, color: str, tip: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{max(height, 1):.1f}" rx="3" '
        f'fill="{color}"><title>{escape(tip)}</title></rect>'
    )


def _svg(width: int, height: float, body: str, label: str) -> str:
    return f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(label)}">{body}</svg>'


def _bars(
    rows: Sequence[Row], label: Callable[[Row], str], measure: str, show: Callable[[float], str], color: str = BLUE
) -> str:
    """Return a chart of horizontal bars. Tooltips show the numbers of flights. Bars of negative values go left."""
    values = [row[measure] or 0.0 for row in rows]
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    left, width, step = 215, 290, 26
    scale = width / ((high - low) or 1)
    zero, body = left - low * scale, []
    for i, (row, value) in enumerate(zip(rows, values, strict=True)):
        y = i * step + 4
        x, length = (zero, value * scale) if value >= 0 else (zero + value * scale, -value * scale)
        tip = f"{label(row)}: {row['flights']:,} flights, {row['arrived']:,} arrived, {row['on_time']:,} on time"
        body.append(
            _text(left - 8, y + 14, _short(label(row)), anchor="end")
            + _rect(x, y, length, 18, color, tip)
            + _text(max(x + length, zero) + 6, y + 14, show(value), cls="value")
        )
    return _svg(left + width + 70, len(rows) * step + 6, "".join(body), measure)


def _short(text: str, length: int = 27) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _columns(rows: Sequence[Row], label: Callable[[Row], str]) -> str:
    """Return a chart with two columns for each month: the mean departure delay and the mean arrival delay."""
    pairs = [(row["mean_dep_delay"] or 0.0, row["mean_arr_delay"] or 0.0) for row in rows]
    high, low = max(5.0, *(max(p) for p in pairs)), min(0.0, *(min(p) for p in pairs))
    left, top, height = 40, 12, 190
    step = 640 / max(6, len(rows))
    scale = height / (high - low)
    zero = top + high * scale
    marks = [m for m in range(int(low // 5) * 5, int(high) + 1, 5) if low <= m <= high]
    body = [
        f'<line x1="{left}" x2="{left + step * len(rows):.0f}" y1="{zero - m * scale:.1f}" y2="{zero - m * scale:.1f}" '
        f'class="grid"/>' + _text(left - 6, zero - m * scale + 4, str(m), anchor="end", cls="axis")
        for m in marks
    ]
    for i, (row, pair) in enumerate(zip(rows, pairs, strict=True)):
        for k, (value, color) in enumerate(zip(pair, (BLUE, ORANGE), strict=True)):
            x, y = left + i * step + step * (0.14 + 0.37 * k), zero - max(value, 0) * scale
            tip = f"{label(row)}: {_minutes(value)}, {row['flights']:,} flights"
            body.append(_rect(x, y, step * 0.34, abs(value) * scale, color, tip))
        body.append(_text(left + (i + 0.5) * step, top + height + 18, label(row), anchor="middle", cls="axis"))
    return _svg(left + int(step * len(rows)) + 10, top + height + 26, "".join(body), "mean delay by month")


def _heat(rows: Sequence[Row]) -> str:
    """Return a chart with a cell for each month and hour. The colour is the mean arrival delay; white is no delay."""
    months = sorted({row["month"] for row in rows})
    hours = sorted({row["hour"] for row in rows if row["arrived"] >= 20})
    cells = {(row["month"], row["hour"]): row for row in rows}
    size, tall, left = 32, 22, 40
    body = [_text(left + (i + 0.5) * size, 12, f"{h}", anchor="middle", cls="axis") for i, h in enumerate(hours)]
    for j, month in enumerate(months):
        y = 18 + j * tall
        body.append(_text(left - 6, y + 15, MONTHS[month - 1], anchor="end", cls="axis"))
        for i, hour in enumerate(hours):
            row = cells.get((month, hour))
            if row is None or row["arrived"] < 20:  # a mean of a few says nothing
                continue
            value = row["mean_arr_delay"]
            tip = f"{MONTHS[month - 1]}, {hour}:00: {value:.1f} min, {row['arrived']:,} arrivals"
            body.append(_rect(left + i * size + 1, y + 1, size - 2, tall - 2, _shade(value), tip))
            ink = "#fff" if value >= 22 else "#333"
            body.append(
                f'<text x="{left + (i + 0.5) * size:.0f}" y="{y + 15}" text-anchor="middle" class="cell" '
                f'fill="{ink}">{round(value)}</text>'
            )
    return _svg(left + len(hours) * size + 4, 22 + len(months) * tall, "".join(body), "mean delay by month and hour")


def _shade(value: float) -> str:
    """From green (15 minutes early) through pale to deep red (45 minutes late)."""
    stops = (
        (-15, (92, 170, 130)),
        (0, (240, 242, 232)),
        (12, (250, 205, 140)),
        (25, (226, 110, 74)),
        (45, (140, 28, 44)),
    )
    value = min(max(value, stops[0][0]), stops[-1][0])
    for (a, first), (b, second) in pairwise(stops):
        if value <= b:
            part = (value - a) / (b - a)
            return "#" + "".join(f"{round(p + (q - p) * part):02x}" for p, q in zip(first, second, strict=True))
    raise AssertionError(value)
