"""Every error of TaskHub, in one tree.

::

    TaskHubError
    ├── ConfigurationError          a setting, name or file is wrong; the text says the way out
    │   └── HubError                the hub is missing, not ready, newer, or differs from the settings
    ├── InputError                  a request is wrong: for example, a value does not fit
    │   ├── InvalidStateError       the instance's state does not allow the operation
    │   └── PartitionNotFound       a number that is no partition of the hub
    ├── InstanceExists              a start was refused because the id is taken
    ├── InstanceNotFound
    ├── UnknownOrchestrator, UnknownActivity
    ├── StorageError                what a store answers, translated once at the storage edge
    │   ├── Conflict                a condition (ETag, existence, pop receipt) did not hold
    │   ├── NotFound
    │   ├── LeaseLost               a lease, or a worker's right to a partition, is gone
    │   ├── Throttled               the store asks for patience; carries ``retry_after``
    │   ├── Unavailable             no answer, or a 5xx; carries ``maybe_done``
    │   │   └── AccessDenied        the account refuses the credentials: an outage until it accepts them
    │   └── PayloadTooLarge
    ├── TaskFailedError             inside an orchestrator: an activity or a child failed
    │   └── SubOrchestrationFailedError
    ├── OrchestrationError          raised by an orchestrator to fail; carries ``retryable``
    ├── WorkerFailed                a worker cannot go on, and has ended
    └── NonDeterminismError         the orchestrator made other decisions than its history has
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_taskhub.engine.events import FailureDetails

__all__ = [
    "AccessDenied",
    "ConfigurationError",
    "Conflict",
    "HubError",
    "InputError",
    "InstanceExists",
    "InstanceNotFound",
    "InvalidStateError",
    "LeaseLost",
    "NonDeterminismError",
    "NotFound",
    "OrchestrationError",
    "PartitionNotFound",
    "PayloadTooLarge",
    "StorageError",
    "SubOrchestrationFailedError",
    "TaskFailedError",
    "TaskHubError",
    "Throttled",
    "Unavailable",
    "UnknownActivity",
    "UnknownOrchestrator",
    "WorkerFailed",
]


class TaskHubError(Exception):
    """Root of every error that TaskHub raises on purpose."""


class ConfigurationError(TaskHubError):
    """A setting, a name or a file is wrong. The text names it, its value and the way out."""


class HubError(ConfigurationError):
    """The hub is missing, not ready, newer than this package, or differs from the settings."""


class InputError(TaskHubError):
    """A request is wrong: the same request fails again.

    Usually a value does not fit its annotation, or JSON cannot express it, or the store cannot hold it.
    """


class InvalidStateError(InputError):
    """The instance's state does not allow the operation: a suspend of an instance that has ended, for example."""


class PartitionNotFound(InputError):
    """The hub has no partition of this number."""


class InstanceExists(TaskHubError):
    """A start was refused: the instance id is taken."""


class InstanceNotFound(TaskHubError):
    """No instance has this id."""


class UnknownOrchestrator(TaskHubError):
    """No loaded app declares an orchestrator of this name and version.

    :param text: of the error. :param name: of the orchestrator. :param version: of the instance; "" if it has none.
    """

    def __init__(self, text: str, *, name: str = "", version: str = "") -> None:
        super().__init__(text)
        self.name, self.version = name, version


class UnknownActivity(TaskHubError):
    """No loaded app declares an activity of this name."""


class StorageError(TaskHubError):
    """What a store answered. Raised by every primitive; nothing above the edge sees a service's own error.

    :ivar results: of a unit that goes step by step: what the steps before the failed one gave, step by step.
    """

    results: tuple[tuple[Any, ...], ...] = ()


class Conflict(StorageError):
    """A condition did not hold: a stale ETag, an existing row, blob or queue, a stale pop receipt."""


class NotFound(StorageError):
    """The queue, message, table, row, container or blob does not exist."""


class LeaseLost(StorageError):
    """A lease, or this worker's right to serve a partition, is gone."""


class Throttled(StorageError):
    """The store asks for patience.

    :param message: of the error. :param retry_after: seconds to wait before the next try.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(StorageError):
    """No answer within the deadline, a broken connection, or a server error.

    :param message: of the error.
    :param maybe_done: whether the request may have been carried out all the same.
    """

    def __init__(self, message: str, *, maybe_done: bool = True) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done


class AccessDenied(Unavailable):
    """The account refuses this process: 401, 403, or no token can be had. An outage like any other.

    Its causes come and go while a worker runs (a firewall, the propagation of a role, an expired signature, a wrong
    clock), so requests are tried again and no work is given up. A refused request was not carried out.

    :param message: of the error. :param maybe_done: whether the request may have been carried out all the same.
    """

    def __init__(self, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(message, maybe_done=maybe_done)


class PayloadTooLarge(StorageError):
    """A message, row, property or batch above the service's limit."""


class TaskFailedError(TaskHubError):
    """Raised inside an orchestrator where a failed activity is awaited. Its text is the text of the activity's error.

    :param message: of the error. :param details: what failed, as recorded in the history.
    :param name: of the activity or child that failed; "" if no activity or child did, as for a cancelled timer.
    """

    def __init__(self, message: str, *, details: FailureDetails | None = None, name: str = "") -> None:
        super().__init__(message)
        self.details = details
        self.name = name


class SubOrchestrationFailedError(TaskFailedError):
    """Raised inside an orchestrator where a failed child orchestration is awaited."""


class OrchestrationError(TaskHubError):
    """Raised by an orchestrator to fail the instance.

    :param message: becomes the instance's output.
    :param retryable: whether the Airflow task that waits for the instance may be retried.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class WorkerFailed(TaskHubError):
    """A worker cannot go on and has ended, because a part that it needs has ended."""


class NonDeterminismError(TaskHubError):
    """The code of an orchestrator made other decisions than its recorded history has."""
