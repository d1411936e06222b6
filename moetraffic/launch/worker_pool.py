"""Pool of worker processes that answer each input line with an output line.

Tasks are assigned to free workers; answers are yielded in order of completion.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence

from moetraffic.errors import MoetrafficError

LAST_WORDS = 2000  # characters of a worker's stderr that are kept


def answer_tasks(
    command: Sequence[str], tasks: Sequence[str], *, workers: int
) -> Iterator[tuple[int, str]]:
    """Distribute tasks over worker processes; yield task numbers and answers.

    Parameters
    ----------
    command
        Program that reads a line and prints a line, until its input ends.
    tasks
        Input lines, without line ends.
    workers
        Number of concurrent worker processes, 1 or more.

    Raises
    ------
    MoetrafficError
        If a worker ends before it has answered.  All workers are ended then, and when
        the caller closes the iterator.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(tasks)):
        waiting.put(number)
    done: queue.SimpleQueue[tuple[int, str, str]] = queue.SimpleQueue()
    # a new session, as Ctrl-C must reach only the caller, which ends the workers
    programs = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(min(workers, len(tasks)))
    ]
    for program in programs:
        threading.Thread(
            target=_feed, args=(program, tasks, waiting, done), daemon=True
        ).start()
    try:
        for _ in tasks:
            number, answer, error = done.get()
            if error:
                raise MoetrafficError(error)
            yield number, answer
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _feed(
    program: subprocess.Popen[str],
    tasks: Sequence[str],
    waiting: queue.SimpleQueue[int],
    done: queue.SimpleQueue[tuple[int, str, str]],
) -> None:
    """Send waiting tasks to one worker process and queue its answers."""
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    while True:
        try:
            number = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            program.stdin.write(tasks[number] + "\n")
            program.stdin.flush()
            answer = program.stdout.readline()
        except OSError:
            answer = ""
        if not answer.strip():
            said = program.stderr.read()[-LAST_WORDS:].strip().splitlines()
            why = said[-1] if said else f"exit code {program.poll()}"
            done.put((number, "", f"run {number} of {len(tasks)} ended early: {why}"))
            return
        done.put((number, answer, ""))
