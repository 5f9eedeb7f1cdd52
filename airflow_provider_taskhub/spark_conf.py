"""Which of Spark's settings a session can change, and which only the start of a Spark application can set.

Source: the settings that Spark 4.2 itself knows (``ConfigEntry`` and ``StaticSQLConf``). ``SparkSession.conf.set``
refuses all of them but the ones of ``spark.sql.`` that are not static.
"""

from __future__ import annotations

from collections.abc import Mapping

OF_THE_WORKER = ("spark.master", "spark.submit.", "spark.app.")
"""Beginnings of the names of settings that only the worker may set."""
_GROUPS = """
    archives authenticate barrier broadcast buffer checkpoint cleaner cores decommission default driver
    dynamicAllocation eventLog excludeOnFailure executor executorEnv extraListeners file files hadoop hadoopRDD io jars
    kerberos kryo kryoserializer kubernetes local locality log memory metrics network plugins pyspark python rdd
    redaction reducer resources rpc scheduler security serializer shuffle speculation stage storage task taskMetrics ui
    unsafe user yarn
"""
"""The second part of the names of settings that an application gets at its start: ``spark.executor.memory``."""
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
    """Return the settings that only the start of a Spark application can set.

    :param conf: Spark's settings by name.
    """
    return {name: value for name, value in conf.items() if _of_application(name)}


def session_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a session can change, and those that Spark does not know.

    :param conf: Spark's settings by name.
    """
    return {name: value for name, value in conf.items() if not _of_application(name)}


def _of_application(name: str) -> bool:
    if name == "spark.scheduler.pool":  # of a job
        return False
    return name in _STATIC or (name.startswith("spark.") and name.split(".")[1] in _CORE)
