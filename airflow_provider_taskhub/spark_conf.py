"""Which of Spark's settings a session can change, and which only the start of a Spark application can set.

Source: the settings of Spark 4.2 (``ConfigEntry``, ``StaticSQLConf``, ``HiveUtils``, and groups of names that it hands
on, such as ``spark.hadoop.``). ``SparkSession.conf.set`` refuses every setting that Spark knows, except those of
``spark.sql.`` that are not static.
"""

from __future__ import annotations

from collections.abc import Mapping

OF_THE_WORKER = ("spark.master", "spark.submit.", "spark.app.")
"""Beginnings of the names of settings that only the worker may set."""
_GROUPS = """
    archives authenticate barrier broadcast buffer checkpoint cleaner cores decommission default driver
    dynamicAllocation eventLog excludeOnFailure executor executorEnv extraListeners file files graphx hadoop hadoopRDD
    hive io jars kafka kerberos kryo kryoserializer kubernetes local locality log memory metrics network plugins port
    pyspark python rdd redaction reducer resources rpc scheduler security serializer shuffle speculation ssl stage
    storage streaming task taskMetrics ui unsafe user yarn
"""
"""If the second part of a setting's name is one of these, only the start of an application can set it. The second part
of ``spark.executor.memory`` is ``executor``."""
_STATIC_NAMES = """
    broadcastExchange.maxThreadThreshold cache.serializer catalog.spark_catalog.defaultDatabase catalogImplementation
    codegen.cache.maxEntries codegen.comments debug defaultUrlStreamHandlerFactory.enabled event.truncate.length
    extensions filesourceTableRelationCacheSize globalTempDatabase hive.thriftServer.singleSession
    legacy.sessionInitWithConfigDefaults metadataCacheTTLSeconds queryExecutionListeners
    resultQueryStage.maxThreadThreshold shuffleExchange.maxThreadThreshold sources.disabledJdbcConnProviderList
    sources.schemaStringLengthThreshold streaming.streamingQueryListeners streaming.ui.enabled
    streaming.ui.enabledCustomMetricList streaming.ui.retainedProgressUpdates streaming.ui.retainedQueries
    subquery.maxThreadThreshold ui.retainedExecutions warehouse.dir
"""
"""The settings of ``spark.sql.`` that an application gets at its start, without this beginning."""
_CORE = frozenset(_GROUPS.split())
_STATIC = frozenset(f"spark.sql.{name}" for name in _STATIC_NAMES.split())


def application_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that only the start of a Spark application can set. If there is one, settings that Spark does
    not know are among them: a listener or a plugin of the application may read them at its start.

    :param conf: Spark's settings by name.
    """
    if not any(map(_of_application, conf)):
        return {}
    return {name: value for name, value in conf.items() if _of_application(name) or not _of_session(name)}


def session_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a session can change, and those that Spark does not know.

    :param conf: Spark's settings by name.
    """
    return {name: value for name, value in conf.items() if not _of_application(name)}


def _of_application(name: str) -> bool:
    if _of_session(name):
        return name in _STATIC or name.startswith("spark.sql.hive.metastore.")
    return name.startswith("spark.") and name.split(".")[1] in _CORE


def _of_session(name: str) -> bool:
    """Return whether a name is of Spark SQL or of a job. :param name: such as ``spark.sql.shuffle.partitions``."""
    return name.startswith("spark.sql.") or name == "spark.scheduler.pool"
