"""Reads the orders of the page's users: JSON bodies that no other web site can make a user's browser send.

A browser sends Airflow's cookie with a form of another web site, but not with a request that has the content type
JSON: for such a request it asks Airflow first, and Airflow refuses. So every order must have this content type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_taskhub.errors import (
    InputError,
    InstanceExists,
    InstanceNotFound,
    IntakeFull,
    InvalidStateError,
    PartitionNotFound,
    Unavailable,
)
from airflow_provider_taskhub.hooks.masking import masked

if TYPE_CHECKING:
    from fastapi import Request

    from airflow_provider_taskhub.plugins.client_cache import ClientCache

MOST_BYTES = 256 * 1024
"""The largest body of an order, in bytes."""
Some = TypeVar("Some", bound="Order")


class Order(BaseModel):
    """The fields that every order has. An order is a request by which a user of the page changes something in the hub.

    :param conn: the Airflow connection of the hub; "": the first of the connections that the page shows
        (``page_connections``).
    :param reason: why the user gives the order.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    conn: str = Field("", max_length=250)
    reason: str = Field("", max_length=1000)


async def read(request: Request, model: type[Some]) -> Some:
    """Return the order in a request.

    :param request: the request. Its body was not read yet.
    :param model: the fields of the order.
    :raises HTTPException: with status 403, 413, 415 or 422 if the request is none that the page could have sent.
    """
    from fastapi import HTTPException

    check_sender(request)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"the order is larger than {MOST_BYTES // 1024} KiB: store the data elsewhere")
    try:
        return model.model_validate_json(bytes(body))
    except ValidationError as error:
        raise HTTPException(422, "; ".join(map(_wrong, error.errors(include_url=False, include_input=False)))) from None


def check_sender(request: Request) -> None:
    """Check that the request comes from this page or from a program, and not from another web site.

    :param request: the request.
    :raises HTTPException: with status 415 without the content type JSON, with status 403 if the browser says that
        another web site sent the request.
    """
    from fastapi import HTTPException

    kind = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
    if kind != "application/json":
        raise HTTPException(415, "send the order as JSON, with the header Content-Type: application/json")
    sender = request.headers.get("sec-fetch-site", "same-origin")
    if sender != "same-origin" and "authorization" not in request.headers:
        raise HTTPException(403, "another web site has sent this order: open TaskHub's page in Airflow and repeat it")


@contextmanager
def answered(cache: ClientCache) -> Iterator[None]:
    """Turn the hub's refusals of an order into answers with the way out, and forget what the cache knows.

    :param cache: the cache of the hub that gets the order.
    :raises HTTPException: with status 404, 409, 422 or 503 instead of an error of the client.
    """
    from fastapi import HTTPException

    try:
        yield
    except (InstanceNotFound, PartitionNotFound) as error:
        raise HTTPException(404, masked(str(error))) from error
    except (InvalidStateError, InstanceExists) as error:
        raise HTTPException(409, f"{masked(str(error))}. Load the page again to see its state") from error
    except InputError as error:
        raise HTTPException(422, masked(str(error))) from error
    except IntakeFull as error:
        raise HTTPException(503, masked(str(error))) from error
    except Unavailable as error:
        known = "" if error.maybe_done else "; nothing was done"
        text = known or "; perhaps the order was carried out: load the page again before you repeat it"
        raise HTTPException(503, f"{masked(str(error))}{text}") from error
    finally:  # also after an error, because the store may have done what it did not confirm
        cache.changed()


def _wrong(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])
