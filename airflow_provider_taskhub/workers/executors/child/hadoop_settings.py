"""Takes back what attempts have set in the Hadoop configuration that all sessions of a Spark application share."""

from __future__ import annotations

from typing import Any

_SET_BY_CODE = "programmatically"
"""The source that Hadoop names of a setting that comes from no file."""


class HadoopSettings:
    """The Hadoop configuration of an application.

    :param context: the Spark context. What its configuration has now, stays.
    """

    def __init__(self, context: Any) -> None:
        jvm, gateway = context._jvm, context._gateway
        self._conf = context._jsc.hadoopConfiguration()
        self._nothing = gateway.new_array(jvm.java.lang.Object, 0)
        conf_class = jvm.java.lang.Class.forName("org.apache.hadoop.conf.Configuration")
        # Only this method has all settings as one object, which Java compares in less than a millisecond.
        self._method = conf_class.getDeclaredMethod("getProps", gateway.new_array(jvm.java.lang.Class, 0))
        self._method.setAccessible(True)
        self._keep()

    def restore(self) -> None:
        """Reset the settings that were changed since Spark was started. Call it only while no attempt runs.

        Settings that Hadoop has read from its own files meanwhile stay: it reads some files late.
        """
        now = self._all()
        if now.hashCode() == self._hash:
            return
        changed, gone = now.clone(), self._first.clone()
        changed.entrySet().removeAll(self._first.entrySet())
        gone.keySet().removeAll(now.keySet())
        for key in map(str, changed.keySet()):
            if not self._set_by_code(key):
                continue
            if self._first.containsKey(key):
                self._conf.set(key, self._first.getProperty(key))
            else:
                self._conf.unset(key)
        for key in map(str, gone.keySet()):
            self._conf.set(key, self._first.getProperty(key))
        self._keep()

    def _set_by_code(self, key: str) -> bool:
        """Return whether no file has a setting. Hadoop names no source of an old name of a setting, and says of the new
        one that the old one is deprecated.
        """
        sources = [str(source) for source in self._conf.getPropertySources(key) or ()]
        return not sources or any(source == _SET_BY_CODE or source.startswith("because ") for source in sources)

    def _keep(self) -> None:
        self._first = self._all().clone()
        self._hash = self._first.hashCode()

    def _all(self) -> Any:
        return self._method.invoke(self._conf, self._nothing)
