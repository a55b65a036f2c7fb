"""Commands of sexpgpu in processes that are killed on purpose, each forked from one that has imported everything.

`python -m tests.train.forked` is that one process. It reads a JSON object a line, `Job`, and answers each with another,
`Ended`. A job may be killed at its n-th write point, which is a call of the system that changes a file or a folder:
before the call, after it, or, where it writes bytes, after half of them.
"""

from __future__ import annotations

import builtins
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHECKOUT = Path(__file__).resolve().parents[2]
WRITING = ("write", "fsync", "rename", "replace", "mkdir", "rmdir", "unlink", "ftruncate")


@dataclass
class Job:
    """A command. at: the write point to be killed at, from 1. when: before, half or after. after_s: killed so long
    after it began."""

    arguments: list[str]
    folder: str
    at: int | None = None
    when: str = "before"
    after_s: float | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Ended:
    """status: as of a shell, negative for a signal. points: write points that it reached, unless it was killed."""

    status: int
    points: int
    output: str


class Forks:
    """Runs jobs, one after the other."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # closes both pipes, and waits
            pass

    def run(self, folder: Path, *arguments: str, **rest: Any) -> Ended:
        """Run a command in `folder`; see `Job`. Nothing may end in a traceback."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(asdict(Job(list(arguments), str(folder), **rest))), file=self._process.stdin, flush=True)
        ended = Ended(**json.loads(self._process.stdout.readline()))
        assert "Traceback" not in ended.output, ended.output
        return ended

    def kill(self, folder: Path) -> None:
        """End the job that is under way in `folder`, from another thread."""
        os.kill(int((folder / "pid.txt").read_text()), signal.SIGKILL)


# --- inside -------------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer jobs until there are no more."""
    import s3fs  # noqa: F401

    import sexpgpu.backend.cpu.device
    import sexpgpu.cli.run
    import sexpgpu.lang.load
    import sexpgpu.train.loop  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = Job(**json.loads(line))
        said = Path(job.folder) / "said.txt"
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            perform(job, said, write)
        os.close(write)
        if job.after_s is not None:
            threading.Timer(job.after_s, kill, (child,)).start()
        with os.fdopen(read) as pipe:
            points = pipe.read()
        _, status = os.waitpid(child, 0)
        ended = Ended(os.waitstatus_to_exitcode(status), int(points or 0), said.read_text("utf-8", "replace"))
        print(json.dumps(asdict(ended)), file=answers, flush=True)


def kill(child: int) -> None:
    """Unless it has ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def perform(job: Job, said: Path, points: int) -> None:
    """A job, in its own process, which ends here."""
    from sexpgpu.cli.main import main

    said.with_name("pid.txt").write_text(str(os.getpid()))
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.environ.update(job.environment)
    os.chdir(job.folder)
    count = watch(job)
    write = os.write
    status = 1
    try:
        main(job.arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    write(points, str(count()).encode())
    os._exit(status)


def watch(job: Job) -> Callable[[], int]:
    """Count write points from here on, and die at the one that the job names; gives what counts them."""
    numbers = itertools.count(1)
    reached = [0]
    write = os.write

    def point(call: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        number = reached[0] = next(numbers)
        if number != job.at:
            return call()
        if job.when == "half" and half is not None:
            half()
        elif job.when == "after":
            call()
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    for name in WRITING:
        original = getattr(os, name)

        def counted(*args: Any, original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            if original is write:
                if args[0] in (1, 2):
                    return write(*args)
                return point(lambda: write(*args), lambda: write(args[0], args[1][: len(args[1]) // 2]))
            return point(lambda: original(*args, **kwargs))

        setattr(os, name, counted)
    opened = builtins.open

    def counted_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wxa"):
            return point(lambda: opened(file, mode, *args, **kwargs))
        return opened(file, mode, *args, **kwargs)

    builtins.open = counted_open
    return lambda: reached[0]


if __name__ == "__main__":
    serve()
