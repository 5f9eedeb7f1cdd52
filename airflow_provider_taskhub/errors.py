"""Every error of TaskHub, in one tree.

::

    TaskHubError
    ├── ConfigurationError          a setting, name or file is wrong; the text says how to fix it
    │   └── HubError                the hub is missing, not ready, newer, or differs from the settings
    ├── InputError                  a request is wrong: most often a value does not fit
    │   ├── InvalidStateError       the state of the instance does not allow the operation
    │   └── PartitionNotFound       the hub has no partition of this number
    ├── InstanceExists              a start was refused because the instance id is in use
    ├── IntakeFull                  a start was refused because too many messages wait in the hub for a worker
    ├── InstanceNotFound            no instance has this id
    ├── UnknownOrchestrator         no loaded app declares the orchestrator
    ├── UnknownActivity             no loaded app declares the activity
    ├── StorageError                a store has refused or not answered a request
    │   ├── Conflict                a condition of the request (ETag, existence, pop receipt) did not hold
    │   ├── NotFound                the queue, message, table, row, container or blob does not exist
    │   ├── LeaseLost               the worker no longer has the lease of a partition
    │   ├── Throttled               the store asks for fewer requests; has ``retry_after``
    │   ├── Unavailable             the store did not answer, or had a server error; has ``maybe_done``
    │   │   ├── AccessDenied        the account refuses the credentials; requests are tried again
    │   │   └── StoreReplaced       the file of a hub was replaced or restored while it was open; open it anew
    │   └── PayloadTooLarge         a message, row, property or batch is above the service's limit
    ├── TaskFailedError             raised inside an orchestrator: an activity has failed
    │   └── SubOrchestrationFailedError     raised inside an orchestrator: a child has failed
    ├── OrchestrationError          raised by an orchestrator to fail its instance; has ``retryable``
    ├── PublishSuperseded           an attempt must not publish, because a later attempt of its activity has begun
    ├── WorkerFailed                a worker has ended because of an error
    └── NonDeterminismError         the orchestrator's code does not fit its recorded history

The next error is an ``asyncio.CancelledError``. So ``except Exception`` does not catch it:
:class:`TerminationRequested`.
"""

from __future__ import annotations

from asyncio import CancelledError
from datetime import datetime
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
    "IntakeFull",
    "InvalidStateError",
    "LeaseLost",
    "NonDeterminismError",
    "NotFound",
    "OrchestrationError",
    "PartitionNotFound",
    "PayloadTooLarge",
    "PublishSuperseded",
    "StorageError",
    "StoreReplaced",
    "SubOrchestrationFailedError",
    "TaskFailedError",
    "TaskHubError",
    "TerminationRequested",
    "Throttled",
    "Unavailable",
    "UnknownActivity",
    "UnknownOrchestrator",
    "WorkerFailed",
]


class TaskHubError(Exception):
    """Base class of all errors of TaskHub."""


class ConfigurationError(TaskHubError):
    """A setting, a name or a file is wrong. The text has the wrong value, unless it is secret, and says what to do."""


class HubError(ConfigurationError):
    """The hub is missing, not ready, newer than this package, or differs from the settings."""


class InputError(TaskHubError):
    """A request is wrong: the same request fails again.

    Most often a value does not fit its annotation, JSON cannot express the value, or the store cannot hold the value.
    """


class InvalidStateError(InputError):
    """The state of the instance does not allow the operation: an ended instance cannot be suspended, for example."""


class PartitionNotFound(InputError):
    """The hub has no partition of this number."""


class InstanceExists(TaskHubError):
    """A start was refused because another instance has the instance id."""


class IntakeFull(TaskHubError):
    """A start was refused because too many messages wait in the hub for a worker. Nothing was stored.

    An administrator sets this limit: ``taskhub limits intake``.

    :param message: text of the error.
    :param waits: whether the policy of the hub is to wait for room, and not to refuse at once.
    """

    def __init__(self, message: str, *, waits: bool = False) -> None:
        super().__init__(message)
        self.waits = waits


class InstanceNotFound(TaskHubError):
    """No instance has this id."""


class UnknownOrchestrator(TaskHubError):
    """No loaded app declares an orchestrator of this name and version.

    :param text: text of the error.
    :param name: name of the orchestrator.
    :param version: version of the instance; "" if it has none.
    """

    def __init__(self, text: str, *, name: str = "", version: str = "") -> None:
        super().__init__(text)
        self.name, self.version = name, version


class UnknownActivity(TaskHubError):
    """No loaded app declares an activity of this name."""


class StorageError(TaskHubError):
    """A store has refused a request, or has not answered.

    Only this error and its subclasses leave the storage modules; the errors of Azure's or SQLite's libraries are
    translated there.

    :ivar results: for a unit (several steps that are given to a store together): the results of the steps before the
        failed step. One tuple for each step, with the results of its operations. Empty for other requests.
    """

    results: tuple[tuple[Any, ...], ...] = ()


class Conflict(StorageError):
    """A condition of the request did not hold: an old ETag, an old pop receipt, or an existing row, blob or queue."""


class NotFound(StorageError):
    """The queue, message, table, row, container or blob does not exist."""


class LeaseLost(StorageError):
    """The worker has lost a lease, or its right to serve a partition."""


class Throttled(StorageError):
    """The store asks for fewer requests. It has certainly not carried out the request.

    :param message: text of the error.
    :param retry_after: seconds to wait before the next try.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(StorageError):
    """A request got no answer within its deadline, a broken connection, or a server error.

    :param message: text of the error.
    :param maybe_done: True if the store may have carried out the request in spite of the error.
    """

    def __init__(self, message: str, *, maybe_done: bool = True) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done


class AccessDenied(Unavailable):
    """The account refuses the credentials (401 or 403), or no token can be obtained. It is handled like an outage.

    The causes can appear and disappear while a worker runs: a firewall, a role that is not yet active everywhere, an
    expired signature, a wrong clock. So requests are tried again, and no work is lost. The store does not carry out a
    refused request.

    :param message: text of the error.
    :param maybe_done: True if the store may have carried out the request in spite of the error.
    """

    def __init__(self, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(message, maybe_done=maybe_done)


class StoreReplaced(Unavailable):
    """The SQLite file of a hub was replaced, restored or removed while it was open.

    What this process knows of the hub is void: leases, received messages and instances in memory. So no request is
    carried out any more. Close the store and open it anew. A worker ends, so that it can be started again.
    """


class PayloadTooLarge(StorageError):
    """A message, row, property or batch is larger than the storage service allows."""


class TaskFailedError(TaskHubError):
    """Raised where an orchestrator awaits an activity that has failed. The text is the text of the activity's error.

    :param message: text of the error.
    :param details: the failure as the history records it; None if there is none, as for a cancelled timer.
    :param name: name of the failed activity or child; "" if there is none, as for a cancelled timer.
    """

    def __init__(self, message: str, *, details: FailureDetails | None = None, name: str = "") -> None:
        super().__init__(message)
        self.details = details
        self.name = name


class SubOrchestrationFailedError(TaskFailedError):
    """Raised where an orchestrator awaits a child orchestration that has failed."""


class TaskCancelledError(TaskFailedError):
    """Raised where an orchestrator awaits a task that it has cancelled."""


class TerminationRequested(CancelledError):
    """Raised where an orchestrator waits when somebody terminates its instance and leaves it time to clean up.

    The instance ends as ``Terminated`` whatever the code does then: at the end of the code, or at the deadline.

    :param reason: the reason of the terminate; "" if there is none.
    :param deadline: when the instance ends, by the orchestrator's time.
    """

    def __init__(self, reason: str, deadline: datetime) -> None:
        super().__init__(f"the instance is being terminated{f': {reason}' if reason else ''}")
        self.reason, self.deadline = reason, deadline


class OrchestrationError(TaskHubError):
    """Raised by an orchestrator to fail the instance.

    :param message: becomes the instance's output.
    :param retryable: whether Airflow can retry the task that waits for the instance.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class PublishSuperseded(TaskHubError):
    """This attempt must not publish any more.

    Most often its worker has lost it, and a later attempt of the same call has begun. Then the outcome of this attempt
    counts for nobody. If somebody called ``remove_unpublished`` while the attempt wrote, there is no later attempt, and
    the activity fails with this error.
    """


class WorkerFailed(TaskHubError):
    """A worker has ended, because one of its parts has failed and cannot go on."""


class NonDeterminismError(TaskHubError):
    """The orchestrator's code makes other decisions than its recorded history has."""
