"""The activity of the DAG ``spark_rows``. Start a worker with ``taskhub worker --app spark_rows_app:app``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_taskhub.app import App, RetryPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = App("spark_rows")


@dataclass(frozen=True)
class Range:
    """The numbers from ``first`` up to, but not including, ``end``."""

    first: int
    end: int


@app.spark_activity(standalone=True, retry=RetryPolicy(max_attempts=2))
def count_primes(spark: "SparkSession", numbers: Range) -> int:
    """Count the prime numbers in a range."""
    from pyspark.sql import functions as f

    candidates = spark.range(max(2, numbers.first), numbers.end).withColumnRenamed("id", "number")
    divisors = spark.range(2, int(numbers.end**0.5) + 1).withColumnRenamed("id", "divisor")
    divides = (f.col("divisor") < f.col("number")) & (f.col("number") % f.col("divisor") == 0)
    return candidates.join(divisors, divides, "left_anti").count()
