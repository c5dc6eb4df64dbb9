"""The terminal: where results and progress go, and how an error looks."""

from __future__ import annotations

import sys
import time
from typing import Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from typer.core import TyperGroup

from forge_eq.errors import ForgeError

REFUSED, WRONG, STOPPED = 1, 2, 130  # exit status: a rule was refused | an error that says what to do | Ctrl-C


def out() -> Console:
    """For results. Made anew each time, because tests and shells replace the stream."""
    return Console(markup=False, highlight=False, emoji=False)


def err() -> Console:
    """For progress and errors."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def width() -> int:
    return out().width


def say(text: str = "") -> None:
    """A result, as it is: neither wrapped nor coloured."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


class Stages:
    """Tells each stage when it ends, and while it runs where there is a terminal. Used as ``on_stage``."""

    def __init__(self) -> None:
        self.console = err()
        self.name, self.start = "", 0.0
        self.live: Any = None

    def __call__(self, name: str) -> None:
        self.close()
        self.name, self.start = name, time.perf_counter()
        if self.console.is_terminal:
            self.live = self.console.status(f"{name} ...")
            self.live.start()

    def close(self, done: bool = True) -> None:
        """Ends the stage that runs."""
        if self.live is not None:
            self.live.stop()
            self.live = None
        if self.name and done:
            self.console.print(f"  {self.name:10} {time.perf_counter() - self.start:7.2f} s")
        self.name = ""

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.close(kind is None)


def show_error(e: ForgeError) -> None:
    """The error's parts, in a panel."""
    console = err()
    body = Text(f"{e.node}: {e.reason}\n\nremedy: {e.remedy}")
    title = f"{type(e).__name__} in {e.stage}"
    if console.is_terminal:
        console.print(Panel(body, title=title, title_align="left", border_style="red"))
    else:
        console.print(Text(f"{title}\n{body.plain}"), soft_wrap=True)  # as it is, for logs


class Group(TyperGroup):
    """Commands whose ForgeErrors end in a panel and status 2, and whose Ctrl-C ends in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ForgeError as e:
            show_error(e)
            raise typer.Exit(WRONG) from None
        except KeyboardInterrupt:
            err().print("stopped")
            raise typer.Exit(STOPPED) from None
