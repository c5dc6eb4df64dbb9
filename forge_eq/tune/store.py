"""Where trials are kept: optuna's own storages, shared by processes and machines.

Takes a place. Gives an optuna study, or none. Promises: several processes may open the same place at once and add
trials to one study; a place that cannot be used is named. Not here: which trials to run.

``*.db`` and ``sqlite:///...`` are SQLite (processes of one machine), ``*.journal`` is optuna's journal (also over a
network file system), any other URL is a database server as optuna and SQLAlchemy know it.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forge_eq.errors import OptionsError

RUN = "run"  # user attribute of a trial: which run added it
TRIES = 20  # to create the tables while another process does


def require() -> Any:
    """optuna, imported. Raises OptionsError when it is not installed."""
    try:
        import optuna
    except ImportError as e:
        raise OptionsError("tune", "optuna", "is not installed", "pip install 'forge_eq[tune]'") from e
    return optuna


def open_study(place: str | Path | None, name: str, direction: str) -> Any:
    """The study at a place, made if need be; None without a place. Raises OptionsError."""
    if place is None:
        return None
    optuna = require()
    text, reason = str(place), ""
    for _ in range(TRIES):
        try:
            with quiet():
                storage = _storage(optuna, text)
                return optuna.create_study(storage=storage, study_name=name, direction=direction, load_if_exists=True)
        except OptionsError:
            raise
        except Exception as e:  # the libraries below raise errors of many kinds
            reason = f"{type(e).__name__}: {e}".splitlines()[0]
            if "exist" not in reason and "lock" not in reason:
                break
            time.sleep(0.1)
    raise OptionsError("tune", f"storage {text}", f"cannot be opened: {reason}", "use a writable .db or .journal file")


def _storage(optuna: Any, text: str) -> Any:
    if text.endswith(".journal"):
        from optuna.storages.journal import JournalFileBackend

        return optuna.storages.JournalStorage(JournalFileBackend(text))
    if text.endswith(".db") and "://" not in text:
        text = f"sqlite:///{text}"
    if "://" not in text:
        raise OptionsError("tune", f"storage {text}", "is of no known kind", "use a .db or .journal file, or a URL")
    wait = {"connect_args": {"timeout": 60}} if text.startswith("sqlite") else {}
    return optuna.storages.RDBStorage(text, engine_kwargs=wait)


def pull(study: Any, run: str, seen: set[int]) -> list[Any]:
    """Complete trials of other runs that were not seen before."""
    if study is None:
        return []
    done = [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE" and t.number not in seen]
    seen.update(t.number for t in done)
    return [t for t in done if t.user_attrs.get(RUN) != run]


def push(study: Any, trials: Sequence[Any]) -> None:
    """Adds trials to a shared study."""
    if study is not None and trials:
        study.add_trials(trials)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """optuna says each trial and each experimental feature; progress is told by us."""
    optuna = require()
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
