"""Mistakes of people who write their first orchestrations: each is refused or told, with the line and the way out."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import pickle
import re
import sys
import typing
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, OrchestrationError, RetryPolicy
from airflow_provider_taskhub.engine import context
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.errors import ConfigurationError, InputError
from airflow_provider_taskhub.testing import Event, run
from tests.engine.play import Play, played

HERE = r"test_beginners\.py:\d+( in \w+: `[^`]*`)?"
app = App("beginners")
kept: dict[str, Any] = {}
ran: list[int] = []


@app.activity
def add(number: int) -> int:
    ran.append(number)
    return number + 1


@app.activity
def is_ready(number: int) -> bool:
    return number > 0


@app.activity
def untyped(number: int):  # type: ignore[no-untyped-def]
    return number


@app.activity(name="later")
async def add_later(number: int = 1) -> int:
    return add(number)


@app.orchestrator
async def child(ctx: OrchestrationContext) -> str:
    return "child"


def undeclared(number: int) -> int:
    return number


def failure(code: Callable[[OrchestrationContext], Any], **options: Any) -> str:
    with pytest.raises(OrchestrationError) as raised:
        run(code, app=app, **options)
    return str(raised.value)


def matches(pattern: str, text: str) -> None:
    __tracebackhide__ = True
    assert re.search(pattern, text), text


class Test_a_refused_call:
    """The code catches the error and goes on: it is told, with the line."""

    def told(self, function: Callable[..., Any]) -> str:
        with pytest.warns(RuntimeWarning) as warned:
            assert run(function, app=app) == "went on"
        (text,) = [str(one.message) for one in warned if "went on after" in str(one.message)]
        return text

    def test_of_asyncio(self) -> None:
        async def o(ctx: OrchestrationContext) -> str:
            with contextlib.suppress(Exception):
                await asyncio.sleep(60)
            await ctx.create_timer(timedelta(seconds=1))
            return "went on"

        matches(
            rf"'o' went on after an error that its code must not catch: asyncio.sleep .* \(at {HERE}\)", self.told(o)
        )

    def test_in_a_plain_function(self) -> None:
        def o(ctx: OrchestrationContext) -> str:
            with contextlib.suppress(Exception):
                asyncio.get_running_loop().call_later(1, print)
            return "went on"

        matches(
            rf"'o' went on after an error that its code must not catch: loop.call_later .* \(at {HERE}\)", self.told(o)
        )

    def test_of_an_activity_like_a_plain_function(self) -> None:
        async def o(ctx: OrchestrationContext) -> str:
            try:
                return str(add(1))
            except Exception:
                return "went on"

        matches(rf"must not catch: activity 'add' was called like a plain function .* at {HERE}", self.told(o))


async def loops(task: Any) -> None:
    async for _ in task:
        pass


async def enters(task: Any) -> None:
    with task:
        pass


async def enters_async(task: Any) -> None:
    async with task:
        pass


class Test_a_forgotten_await:
    @pytest.mark.parametrize("inside", [False, True], ids=["returned", "in a list"])
    def test_whose_task_is_the_result(self, inside: bool) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            task = ctx.call_activity(add, 1)
            return [task] if inside else task

        text = failure(o)
        matches(rf"value(\[0\])? is activity 'add' at {HERE}, which was not awaited: write `await` before it", text)
        assert "Attempts" not in text

    def test_whose_task_is_an_input(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(add, ctx.call_activity(add, 1))  # type: ignore[call-overload]

        matches(rf"is activity 'add' at {HERE}, which was not awaited", failure(o))

    @pytest.mark.parametrize(
        "use",
        [
            lambda task: task + 1,
            lambda task: 1 + task,
            lambda task: task["a"],
            lambda task: task > 3,
            lambda task: [*task],
            lambda task: 3 in task,
            lambda task: sum([task]),
            lambda task: task.upper(),
            lambda task: f"total: {task}",
            lambda task: "total: " + str(task),
            lambda task: "total: %s" % task,  # noqa: UP031
            lambda task: "total: {}".format(task),  # noqa: UP032
            lambda task: f"total: {task:>5}",
            lambda task: ", ".join(["total", task]),
            lambda task: [1, 2][task],
            lambda task: int(task),
            lambda task: len(task),
            lambda task: -task,
            lambda task: task % 2,
            lambda task: task(),
            lambda task: setattr(task, "total", 1),
        ],
    )
    def test_whose_task_is_used_as_a_value(self, use: Callable[[Any], Any]) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return use(ctx.call_activity(add, 1))

        text = failure(o)
        named = rf"activity 'add' at {HERE}|a task( found| object has no .*) \(at test_beginners.py:.*\). The task"
        matches(f"({named}) was not awaited: write `await` before it", text)
        assert "Attempts" not in text

    @pytest.mark.parametrize("use", [loops, enters, enters_async])
    def test_whose_task_is_used_as_a_block(self, use: Callable[[Any], Any]) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            await use(ctx.call_activity(add, 1))

        text = failure(o)
        matches(rf"activity 'add' at {HERE} was not awaited: write `await` before it", text)
        assert "Attempts" not in text

    def test_whose_task_is_a_condition(self) -> None:
        async def o(ctx: OrchestrationContext) -> str:
            return "ready" if ctx.call_activity(is_ready, 0) else "not ready"

        matches(rf"activity 'is_ready' at {HERE} is always true: write `await` before it, or compare", failure(o))

    def test_whose_task_is_a_condition_and_has_no_declared_type(self) -> None:
        async def o(ctx: OrchestrationContext) -> str:
            done = ctx.call_activity(untyped, 0)
            await ctx.create_timer(timedelta(seconds=60))
            return "done" if done else "not done"

        told = rf"has tested activity 'untyped' at {HERE} as if it were its result.* write `await` before it"
        with pytest.warns(RuntimeWarning, match=told):
            run(o, app=app)

    @pytest.mark.parametrize("use", [lambda task: task == 2, lambda task: task in [1, 2], lambda task: task != "x"])
    def test_whose_task_is_compared(self, use: Callable[[Any], Any]) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            task = ctx.call_activity(add, 1)
            await task
            return use(task)

        matches(rf"activity 'add' at {HERE} was not awaited", failure(o))

    def test_a_group_of_tasks_with_bool_results_fails_as_others(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.when_all([ctx.call_activity(is_ready, "a"), ctx.call_activity(is_ready, "b")])

        matches("activity 'is_ready' failed", failure(o))

    def test_tasks_are_compared_with_each_other_and_with_none(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            tasks = [ctx.call_activity(add, number) for number in range(3)]
            timer = None if len(tasks) == 3 else ctx.create_timer(timedelta(days=1))
            first = await ctx.when_any(tasks)
            tasks.remove(first)
            return [bool(timer), first in tasks, first == None, tasks[0] == tasks[1], tasks[0] != tasks[1]]  # noqa: E711

        assert run(o, app=app) == [False, False, False, False, True]

    def test_whose_task_is_shown(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return f"{ctx.call_activity(add, 1)!r}"

        with pytest.warns(RuntimeWarning, match=f"never awaited activity 'add' at {HERE}"):
            matches(rf"<activity 'add' at {HERE}>", run(o, app=app))

    @pytest.mark.parametrize("group", ["when_all", "when_any"])
    def test_before_a_group(self, group: str) -> None:
        async def o(ctx: OrchestrationContext) -> str:
            getattr(ctx, group)([ctx.call_activity(add, 1), ctx.create_timer(timedelta(days=9))])
            return "done"

        with pytest.warns(RuntimeWarning, match=f"never awaited activity 'add' at {HERE}") as told:
            assert run(o, app=app) == "done"
        assert any("never awaited timer at" in str(one.message) for one in told)

    def test_before_a_wait_that_is_taken_for_an_answer(self) -> None:
        async def o(ctx: OrchestrationContext) -> str:
            return "approved" if ctx.wait_for_external_event("approved") else "refused"

        with pytest.warns(RuntimeWarning, match=f"never awaited wait for event 'approved' at {HERE}"):
            run(o, app=app)

    def test_what_is_used_through_its_group_is_not_forgotten(self) -> None:
        async def o(ctx: OrchestrationContext) -> list[int]:
            slow = ctx.create_timer(timedelta(days=1))
            inner = ctx.when_all([ctx.call_activity(add, number) for number in range(3)])
            first = await ctx.when_any([inner, slow])
            assert first is inner
            return inner.get_result()

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert run(o, app=app) == [1, 2, 3]

    @pytest.mark.parametrize("group", ["when_all", "when_any"])
    def test_a_group_of_no_list(self, group: str) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await getattr(ctx, group)(ctx.call_activity(add, 1))

        matches(rf"{group} takes a list of tasks, not activity 'add' at {HERE}: write {group}\(\[task\]\)", failure(o))


class Test_a_task_of_another_run:
    @pytest.mark.parametrize("grouped", [False, True])
    def test_is_refused(self, grouped: bool) -> None:
        """It would never end: nobody gives the task of an earlier replay its result."""

        async def o(ctx: OrchestrationContext) -> Any:
            timer = ctx.create_timer(timedelta(days=2))
            task = kept.setdefault("task", timer)
            if ctx.is_replaying or task is not timer:
                return await (ctx.when_all([task, timer]) if grouped else task)
            return None

        kept.clear()
        run(o, app=app)
        matches(rf"awaited .* at {HERE}, which another run of an orchestrator has made", failure(o))


def one_call(function: Callable[..., Any]) -> Callable[[OrchestrationContext], Any]:
    async def o(ctx: OrchestrationContext) -> Any:
        return await ctx.call_activity(function)

    return o


async def calls(ctx: OrchestrationContext) -> Any:
    return add(1)


async def awaits(ctx: OrchestrationContext) -> Any:
    return await add_later(1)


async def maps(ctx: OrchestrationContext) -> Any:
    await ctx.create_timer(timedelta(days=1))
    return [*map(add, [1])]


async def branches(ctx: OrchestrationContext) -> Any:
    return await ctx.branch(add_later(1))


class Test_a_direct_call_of_an_activity:
    """Its code would run again in each replay."""

    @pytest.mark.parametrize("code", [calls, awaits, maps, branches])
    def test_in_an_orchestrator(self, code: Callable[[OrchestrationContext], Any]) -> None:
        ran.clear()
        text = failure(code)
        name, call = ("later", "add_later") if "add_later" in code.__code__.co_names else ("add", "add")
        matches(f"activity '{name}' was called like a plain function in an orchestrator, at {HERE}", text)
        assert f"in {code.__name__}: `" in text
        assert f"write `await ctx.call_activity({call}, …)`" in text
        assert ran == []

    def test_in_a_worker(self) -> None:
        worker = App("worker")
        worker.orchestrator(calls)
        play = Play(worker)
        play.start("calls")
        assert play.last.status is Status.FAILED
        assert play.last.completed is not None
        assert play.last.completed.failure is not None
        assert "activity 'add' was called like a plain function" in play.last.completed.failure.error_message

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_in_the_clean_up_of_an_orchestrator_that_a_worker_evicts(self) -> None:
        async def cleans(ctx: OrchestrationContext) -> None:
            try:
                await ctx.wait_for_external_event("go")
            finally:
                add(1)

        ran.clear()
        play, _ = played(cleans)
        close = play.live.release()
        assert close is not None
        close()
        assert ran == []

    def test_outside_of_an_orchestrator_is_a_plain_call(self) -> None:
        assert (add(1), asyncio.run(add_later(2))) == (2, 3)


class Test_a_call:
    def test_of_a_function_that_is_not_declared(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(undeclared, 1)

        line = r"\(at .*test_beginners.py:\d+ in o: `return await ctx.call_activity\(undeclared, 1\)`\)"
        matches(f"function 'undeclared' is not declared {line}: put @app.activity on it", failure(o))

    def test_of_a_lambda(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(lambda day: day, 1)

        matches(r"function '<lambda>' is not declared \(at .*test_beginners.py:\d+ in o: ", failure(o))

    def test_of_an_orchestrator_as_an_activity(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(child)

        matches("'child' is an orchestrator: use ctx.call_sub_orchestrator", failure(o))

    def test_of_an_activity_as_a_child(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_sub_orchestrator(add, 1)

        matches("'add' is an activity: use ctx.call_activity", failure(o))

    def test_without_its_input(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(add)

        matches("activity 'add' needs an input: its parameter 'number' has no default", failure(o))

    @pytest.mark.parametrize("name", ["add", "child"])
    def test_with_a_retry_that_is_none(self, name: str) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            call: Any = ctx.call_activity if name == "add" else ctx.call_sub_orchestrator
            return await call(name, 1, retry=3)

        matches(rf"retry of \w+ '{name}' is 3; give a RetryPolicy", failure(o))

    def test_of_a_wait_with_a_time(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.wait_for_external_event("e", timedelta(hours=1))  # type: ignore[call-overload]

        matches("data_type of event 'e' is .*timedelta.*for a limit of the wait, use ctx.timeout", failure(o))

    def test_of_itself_without_an_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(context, "MAX_DEPTH", 20)
        recursive = App("recursive")

        @recursive.orchestrator
        async def o(ctx: OrchestrationContext, number: int) -> Any:
            depths.append(number)
            return await ctx.call_sub_orchestrator(o, number + 1, retry=RetryPolicy(max_attempts=3))

        depths: list[int] = []
        with pytest.raises(OrchestrationError) as raised:
            run(o, 0, app=recursive)
        matches(r"does 'o' call itself without an end\? For a loop use ctx\.continue_as_new", str(raised.value))
        assert [*dict.fromkeys(depths)] == [*range(21)]
        assert len(depths) < 60, "no level tries again"

    def test_of_a_successor_that_nobody_waits_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A chain of instances may be endless if none waits for another."""
        monkeypatch.setattr(context, "MAX_DEPTH", 20)
        chain, numbers = App("chain"), list[int]()

        @chain.orchestrator
        async def o(ctx: OrchestrationContext, number: int) -> None:
            numbers.append(number)
            if number < 30:
                ctx.call_sub_orchestrator(o, number + 1, fire_and_forget=True)
            await ctx.create_timer(timedelta(seconds=60))

        run(o, 0, app=chain)
        assert max(numbers) == 30

    WRONG: typing.ClassVar[list[Any]] = [
        (lambda ctx: ctx.call_activity(add, 1, 2), "There is one input: put several values into a list"),
        (lambda ctx: ctx.call_sub_orchestrator(child, 1, 2), "There is one input: put several values into a list"),
        (lambda ctx: ctx.wait_for_external_event("x", timeout=5), "write `async with ctx.timeout"),
        (lambda ctx: ctx.create_timer(hours=5), "Its docstring lists the arguments"),
    ]

    @pytest.mark.parametrize(("call", "hint"), WRONG)
    def test_with_arguments_that_the_method_does_not_have(self, call: Callable[[Any], Any], hint: str) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await call(ctx)

        text = failure(o)
        matches(r"OrchestrationContext\.\w+\(\) .* \(at test_beginners\.py:\d+ in ", text)
        assert hint in text

    @pytest.mark.parametrize("group", ["when_all", "when_any"])
    def test_of_a_group_with_several_arguments(self, group: str) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await getattr(ctx, group)(ctx.call_activity(add, 1), ctx.call_activity(add, 2))

        matches(rf"{group} takes one list of tasks: write {group}\(\[one, other\]\)", failure(o))

    @pytest.mark.parametrize(
        "wrong", [lambda ctx: ctx.continue_as_new(1), lambda ctx: [ctx.call_activity(add, 1)]], ids=["none", "list"]
    )
    def test_of_await_for_what_is_no_task(self, wrong: Callable[[OrchestrationContext], Any]) -> None:
        async def o(ctx: OrchestrationContext) -> None:
            await wrong(ctx)

        with pytest.raises(OrchestrationError, match=r"await only tasks\. Await a list with ctx\.when_all") as raised:
            run(o, app=app)
        assert "await wrong(ctx)" in "".join(raised.value.__notes__), "the line"

    def test_of_a_wrapper_above_the_declaration(self) -> None:
        @functools.wraps(add)
        def locked(number: int) -> int:
            return add(number)

        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(locked, 1)

        matches("'add' is a decorator's wrapper .*: put @app.activity above the decorator", failure(o))

    def test_of_an_activity_by_another_activity(self) -> None:
        assert run(one_call(add_later), app=app) == 2

    def test_of_an_activity_leaves_what_others_ask_of_its_function(self) -> None:
        assert pickle.loads(pickle.dumps(add)) is add
        assert typing.get_type_hints(add_later) == {"number": int, "return": int}
        assert [inspect.iscoroutinefunction(function) for function in (add, add_later)] == [False, True]
        assert (str(inspect.signature(add_later)), add_later.__name__) == ("(number: 'int' = 1) -> 'int'", "add_later")
        own = App("own")
        assert own.activity(name="add")(add)(1) == 2
        assert own.activities["add"].function is app.activities["add"].function

        @own.activity
        @functools.lru_cache
        def cached() -> int:
            return 1

        cached.cache_clear()

    def test_of_the_logger_as_of_pythons_own(self, caplog: pytest.LogCaptureFixture) -> None:
        async def o(ctx: OrchestrationContext) -> str:
            logger = ctx.create_replay_safe_logger(logging.getLogger("mine"))
            try:
                raise ValueError("no store")
            except ValueError:
                logger.exception("handled %s", 1)
                ctx.logger.exception("handled")
            logger.critical("two")
            return "on"

        assert run(o, app=app) == "on"
        first, second = (record for record in caplog.records if record.name == "mine")
        assert (first.getMessage(), second.levelname) == ("handled 1", "CRITICAL")
        assert first.exc_info is not None

    def test_of_an_activity_that_cancels_itself(self) -> None:
        own = App("own")

        @own.activity
        async def quits() -> None:
            raise asyncio.CancelledError("mine")

        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(quits)

        with pytest.raises(
            OrchestrationError, match=r"activity 'quits' failed: asyncio\.exceptions\.CancelledError: mine"
        ):
            run(o, app=own)

    def test_of_next_without_a_next_one(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return next(iter([]))

        with pytest.raises(OrchestrationError) as raised:
            run(o, app=app)
        matches(r"test_beginners\.py.*in o", raised.value.__notes__[0].replace("\n", " "))
        assert "driver.py" not in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"first_retry_interval": 5}, "first_retry_interval is 5; give a timedelta"),
        ({"retry_timeout": 60.0}, "retry_timeout is 60.0; give a timedelta"),
        ({"max_retry_interval": "1h"}, "max_retry_interval is '1h'; give a timedelta"),
        ({"max_attempts": "3"}, "max_attempts is '3'; give a whole number"),
        ({"backoff_coefficient": "2"}, "backoff_coefficient is '2'; give a number"),
        ({"handle": ValueError}, "handle is .*ValueError.*give a function"),
        ({"handle": (ValueError,)}, "handle is .*give a function"),
    ],
)
def test_a_retry_policy_with_a_value_of_another_type(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        RetryPolicy(**{"max_attempts": 2, **options})


class Test_a_declaration:
    def test_of_an_orchestrator_whose_first_parameter_is_a_value(self) -> None:
        async def typed(name: str) -> str:
            return name

        async def turned(name: Any, ctx: OrchestrationContext) -> str:
            return "turned"

        for function in (typed, turned):
            with pytest.raises(ConfigurationError, match="'name' as its first parameter, which gets the context"):
                App("a").orchestrator(function)

    def test_of_a_method(self) -> None:
        class Jobs:
            async def o(self, ctx: OrchestrationContext) -> None: ...

            def act(self) -> None: ...

        with pytest.raises(ConfigurationError, match="'o' is a method"):
            App("a").orchestrator(Jobs.o)
        with pytest.raises(ConfigurationError, match="'act' is a method"):
            App("a").activity(Jobs.act)

    @pytest.mark.parametrize("kind", ["activity", "orchestrator"])
    def test_of_a_wrapper_without_the_parameters_of_its_function(self, kind: str) -> None:
        def wrapper(*args: Any, **kwargs: Any) -> Any: ...

        with pytest.raises(ConfigurationError, match=r"\*args: .* put @functools\.wraps\(function\) on it"):
            getattr(App("a"), kind)(wrapper)

    def test_of_a_builtin_function(self) -> None:
        with pytest.raises(ConfigurationError, match=r"function len.*write a function of your own that calls it"):
            App("builtin").activity(len)

    def test_of_a_static_method(self) -> None:
        own = App("own")
        with pytest.raises(
            ConfigurationError, match=r"Jobs\.load' stands above @staticmethod: write @staticmethod above"
        ):

            class Jobs:
                @own.activity
                @staticmethod
                def load() -> int:
                    return 1

    def test_of_a_class(self) -> None:
        class Job: ...

        with pytest.raises(ConfigurationError, match="not a function: put it on a function"):
            App("a").activity(Job)

    def test_with_a_type_that_no_value_can_have(self) -> None:
        made = App("a")

        @made.activity
        def work(row: typing.TypedDict("Row", {"a": int})) -> None: ...  # type: ignore[valid-type]

        if sys.version_info < (3, 12):
            with pytest.raises(ConfigurationError, match=r"activity 'work': its input: .*typing_extensions\.TypedDict"):
                Registry.of([made])


class Test_a_default_that_code_changes:
    @pytest.mark.parametrize("default", [[1.0], {"a": 1.0}], ids=["list", "dict"])
    def test_is_a_new_one_for_each_run(self, default: Any) -> None:
        own = App("own")

        @own.orchestrator
        async def o(ctx: OrchestrationContext, found: Any = default) -> Any:
            for number in range(2):
                await ctx.create_timer(timedelta(seconds=1))
                found.append(number) if isinstance(found, list) else found.update({str(number): 1})
            return found

        first = run(o, app=own)
        assert run(o, app=own) == first
        assert len(first) == 3
        assert len(default) == 1


class Test_a_run_in_a_test:
    def test_that_waits_for_an_event_with_another_name(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.wait_for_external_event("approved")

        expected = "nothing can happen any more: it waits for event 'approved', and 'aproved' was raised"
        with pytest.raises(RuntimeError, match=expected):
            run(o, app=app, events=[Event(name="aproved", after=timedelta(days=9))])

    def test_that_waits_longer_than_its_limit(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            ctx.create_timer(timedelta(days=3))
            return await ctx.wait_for_external_event("approved")

        expected = "still running after 2 days, .*: it waits for event 'approved', and 'aproved' was raised"
        with pytest.raises(RuntimeError, match=expected):
            run(o, app=app, events=[Event(name="aproved")], limit=timedelta(days=2))

    def test_that_gets_an_event_which_is_refused(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.wait_for_external_event("approved", dict[int, int])

        with pytest.raises(InputError, match="has the key 1 of type int"):
            run(o, app=app, events=[Event(name="approved", data={1: 2})])

    def test_without_the_app_of_its_activities(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(add, 1)

        with pytest.raises(OrchestrationError) as raised:
            run(o)
        assert any("pass the app with app=" in note for note in raised.value.__notes__)

    @pytest.mark.parametrize("key", ["ad", add])
    def test_with_a_replacement_of_nothing(self, key: Any) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity(add, 1)

        ran.clear()
        with pytest.raises(ConfigurationError, match=r"did you mean 'add'\?|give the name of an activity"):
            run(o, app=app, activities={key: lambda number: 0})
        assert ran == [], "the activity itself has not run"


@pytest.mark.parametrize(
    "use",
    [
        lambda ctx: ctx.set_custom_status("mine"),
        lambda ctx: ctx.continue_as_new(100),
        lambda ctx: ctx.call_activity("load"),
        lambda ctx: ctx.wait_for_external_event("go"),
        lambda ctx: ctx.instance_id,
        lambda ctx: ctx.current_utc_datetime,
    ],
)
def test_a_context_in_a_global_variable_is_refused_in_another_instance(
    use: Callable[[OrchestrationContext], Any],
) -> None:
    app, shared = App("globals"), list[OrchestrationContext]()

    @app.orchestrator
    async def child(ctx: OrchestrationContext, number: int) -> int:
        shared[:] = [ctx]
        await ctx.create_timer(timedelta(seconds=1))
        if number == 0:  # the context is that of the other child by now
            use(shared[0])
        return number

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> list[int]:
        return await ctx.when_all([ctx.call_sub_orchestrator(child, number) for number in range(2)])

    with pytest.raises(OrchestrationError, match=r"used outside of this run \(at test_beginners\.py:\d+ in <lambda>"):
        run(parent, app=app)
