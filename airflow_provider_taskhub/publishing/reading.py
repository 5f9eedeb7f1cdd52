"""Read what was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.publishing import layout
from airflow_provider_taskhub.publishing.attempt import remove_dead
from airflow_provider_taskhub.publishing.layout import Commit, Writer
from airflow_provider_taskhub.publishing.log import CommitLog
from airflow_provider_taskhub.publishing.stores import files_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The data of one commit.

    :param version: number of the commit, from 1. Each later commit has a larger number.
    :param base: the folder that all paths begin with; Spark's option ``basePath``.
    :param paths: the folders that the target consists of. Other folders below the target do not count.
    """

    version: int
    base: str
    paths: tuple[str, ...]


def published(target: str, *, storage_options: Mapping[str, Any] | None = None) -> Published | None:
    """Return the folders that were published last; None: nothing was published.

    All folders are from one commit. Their data stay until as many later commits are made as ``publish(keep=…)`` says.

    :param target: the target, as it was passed to ``publish``.
    :param storage_options: for an object store: arguments of its fsspec file system, such as credentials.
    :raises InputError: if the target is a relative path, or its scheme is unknown.
    :raises ConfigurationError: if a package or a Spark session is missing, or a commit cannot be read.
    """
    root = target.rstrip("/")
    newest = CommitLog(files_of(target, storage_options), root).newest()
    if not newest.committed:
        return None
    paths = tuple(f"{root}/{folder.path}" for folder in newest.folders)
    return Published(version=newest.version, base=f"{root}/{layout.data_path()}", paths=paths)


def read_published(
    spark: SparkSession,
    target: str,
    *,
    format: str = "parquet",
    schema: StructType | str | None = None,
    options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Return the data that were published last as a DataFrame, with the columns of its partitions.

    If more than one attempt has written Parquet or ORC, Spark merges the columns of all files (``mergeSchema``).
    Otherwise it would take the columns of one file, and the columns that only others have would be missing. Where the
    types of a column do not fit together, Spark raises an error.

    :param spark: the session.
    :param target: as for :func:`published`.
    :param format: format of the files, as ``spark.read.format`` takes it.
    :param schema: schema of the data; None: Spark infers it.
    :param options: further options of Spark's reader. ``mergeSchema="false"`` spares the look into all files.
    :param storage_options: as for :func:`published`.
    :raises InputError: if nothing was published, or no folder was published and there is no schema.
    :raises ConfigurationError: if a package or a Spark session is missing, or a commit cannot be read.
    """
    found = published(target, storage_options=storage_options)
    if found is None:
        raise InputError(f"read_published({target!r}): nothing was published to it")
    if not found.paths:
        if schema is None:
            raise InputError(f"read_published({target!r}): the published data have no rows and no files: pass schema=…")
        return spark.createDataFrame([], schema)
    places = {path.removeprefix(f"{found.base}/").partition("/")[0] for path in found.paths}
    merge = {"mergeSchema": "true"} if len(places) > 1 else {}
    reader = spark.read.format(format).options(**merge, **options or {}).option("basePath", found.base)
    frame = (reader if schema is None else reader.schema(schema)).load(list(found.paths))
    return frame.drop(layout.COLUMN)


def remove_unpublished(target: str, *, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Remove what activities have written and not published, and return the paths below the target.

    An attempt that ends with an error removes its own data, and each later attempt of a call removes what the earlier
    ones have left. So there is something to remove only if a call has lost all its attempts. Call this function while
    no activity publishes to the target: an attempt that is writing then fails, and its data are not published.

    :param target: as for :func:`published`.
    :param storage_options: as for :func:`published`.
    :raises InputError: if the target is a relative path, or its scheme is unknown.
    :raises ConfigurationError: if a package or a Spark session is missing, or a commit cannot be read.
    """
    root = target.rstrip("/")
    log = CommitLog(files_of(target, storage_options), root)
    names = [*log.files.names(layout.data_path()), *log.files.names(layout.commits_path())]
    owners = set(layout.owned(names).values())

    def decide(newest: Commit) -> Commit | None:
        alive = [Writer(key=one.key, attempt=one.attempt + 1) for one in owners if not layout.is_dead(one, newest)]
        return layout.fenced(newest, alive) if alive else None

    newest = log.add("remove_unpublished-0", decide)
    kept = [found for version in log.versions() if (found := log.read(version)) is not None]
    return remove_dead(log.files, newest, kept, None)
