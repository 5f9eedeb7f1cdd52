"""Files on HDFS and its like, through the JVM of the Spark session. A commit is one rename that does not overwrite.

The module reaches into PySpark's gateway, because PySpark has no public way to Hadoop's file systems.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from airflow_provider_taskhub.errors import ConfigurationError

_log = logging.getLogger(__name__)


class HadoopFiles:
    """Files below one target.

    :param jvm: the JVM view of a py4j gateway.
    :param conf: Hadoop's configuration.
    :param target: URL of the target.
    """

    def __init__(self, jvm: Any, conf: Any, target: str) -> None:
        self._jvm = jvm
        self._conf = conf
        self._target = target.rstrip("/")
        self._system = self._path("").getFileSystem(conf)

    @classmethod
    def of_session(cls, target: str) -> HadoopFiles:
        """Return the files of a target, through the active Spark session.

        :raises ConfigurationError: if no classic session is active here.
        """
        context = _context()
        if context is None:
            raise ConfigurationError(
                f"publishing to {target!r} needs a Spark activity with a classic session (no Spark Connect), because "
                "only its JVM has Hadoop's file systems: use @app.spark_activity, or publish to an object store"
            )
        return cls(context._jvm, context._jsc.hadoopConfiguration(), target)

    def names(self, path: str) -> dict[str, bool]:
        """See :class:`.stores.Files`."""
        try:
            found = self._system.listStatus(self._path(path))
        except Exception as error:
            if _is(error, "FileNotFoundException"):
                return {}
            raise
        return {status.getPath().getName(): bool(status.isDirectory()) for status in found}

    def read(self, path: str) -> bytes | None:
        """See :class:`.stores.Files`."""
        try:
            stream = self._system.open(self._path(path))
        except Exception as error:
            if _is(error, "FileNotFoundException"):
                return None
            raise
        try:
            return bytes(self._jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, content: bytes, scratch: str) -> bool:
        """See :class:`.stores.Files`. ``FileSystem.rename`` was rejected: on some systems it overwrites."""
        final, unfinished = self._path(path), self._path(scratch)
        stream = self._system.create(unfinished, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(final.toUri(), self._conf)
        option = self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename")
        none = self._jvm.java.lang.reflect.Array.newInstance(option, 1)
        self._jvm.java.lang.reflect.Array.set(none, 0, option.getEnumConstants()[0])
        try:
            context.rename(unfinished, final, none)
        except Exception as error:
            if _is(error, "FileAlreadyExistsException"):
                return False
            raise
        finally:
            self.delete(scratch)
        return True

    def delete(self, path: str) -> None:
        """See :class:`.stores.Files`."""
        self._system.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        # a path with "=" or ":" in a name would be misread as a URI by one argument, so the parent is another argument
        root = self._jvm.org.apache.hadoop.fs.Path(self._target)
        return self._jvm.org.apache.hadoop.fs.Path(root, path) if path else root


def default_scheme() -> str | None:
    """Return the scheme of paths that have none, as the active Spark session takes them; None: no session is active."""
    context = _context()
    if context is None:
        return None
    conf = context._jsc.hadoopConfiguration()
    return str(context._jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(conf).getScheme())


def executors_see(path: str) -> bool:
    """Return whether the executors of the active session's cluster see a file on this machine's disk.

    :returns: True also without a classic session, for a local Spark, and if the executors cannot be asked.
    """
    context = _context()
    if context is None or str(context.master).startswith("local"):
        return True

    def sees(_: int) -> bool:
        import os

        return os.path.exists(path)

    sees.__module__ = "__main__"  # PySpark sends its code then: the executors need not have this package
    count = max(1, int(context.defaultParallelism))
    try:
        return all(context.parallelize(range(count), count).map(sees).collect())
    except Exception as error:  # executors without Python
        _log.warning("whether the executors see %s is not known: %s", path, str(error).splitlines()[:1])
        return True


def _context() -> Any:
    """Return the context of the active classic session, or None. A session of Spark Connect has no context."""
    if "pyspark.sql" not in sys.modules:
        return None
    return getattr(sys.modules["pyspark.sql"].SparkSession.getActiveSession(), "_sc", None)


def _is(error: Exception, name: str) -> bool:
    """Return whether an exception of the gateway is a Java exception of this class."""
    java = getattr(error, "java_exception", None)
    return java is not None and java.getClass().getSimpleName() == name
