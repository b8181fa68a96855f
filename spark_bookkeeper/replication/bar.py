"""A bar for whoever looks: how far some work is, how quick it is, and how long it may take yet.

What draws it is imported when there is one to draw: tasks and programs do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from spark_bookkeeper.replication.runner import Progress, no_progress, shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

P = ParamSpec("P")
R = TypeVar("R")

_SIZE: Final = "size_bytes"
"""Field of a task of the bar: how much was copied or read."""


def shows_progress(method: Callable[P, R]) -> Callable[P, R]:
    """A method whose argument ``progress`` is ``shown`` by default."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given: Any = kwargs.get("progress", shown)
        with seen(given) as told:
            kwargs["progress"] = told
            return method(*args, **kwargs)

    return call


@contextmanager
def seen(progress: Progress, console: Console | None = None) -> Iterator[Progress]:
    """What work is to tell of its progress: ``shown`` is a bar on a terminal or in a notebook,
    and says nothing anywhere else; any other is what it is.

    Args:
        progress: as somebody gave it.
        console: where the bar is; ``None`` is stderr.
    """
    if progress is not shown:
        yield progress
        return
    from rich.console import Console

    console = console or Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield no_progress
        return
    with bar_on(console) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(phase: str, done: int, total: int, size_bytes: int) -> None:
            name = phase.partition(",")[0]  # behind it: who is waited for
            if name not in tasks:
                for each in tasks.values():
                    bar.remove_task(each)
                tasks.clear()
                tasks[name] = bar.add_task("", total=None)
            move(bar, tasks[name], phase, done, total or None, size_bytes)

        yield tell


def bar_on(console: Console) -> RichProgress:
    """A bar that is gone when it is over; not started yet."""
    from rich import progress
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Items in a second, and megabytes where somebody counts them."""

        def render(self, task: progress.Task) -> Text:
            if not task.completed or not task.elapsed:
                return Text("")
            size = task.fields.get(_SIZE, 0) / task.elapsed / 1e6
            rate = task.completed / task.elapsed
            return Text(f"{rate:,.1f}/s" + (f", {size:,.1f} MB/s" if size else ""))

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def move(
    bar: RichProgress,
    task: TaskID,
    what: str,
    done: float,
    total: float | None,
    size_bytes: int,
) -> None:
    """Show how far a task of a bar is now."""
    from rich.markup import escape

    fields: dict[str, Any] = {_SIZE: size_bytes}
    bar.update(task, description=escape(what), completed=done, total=total, **fields)
