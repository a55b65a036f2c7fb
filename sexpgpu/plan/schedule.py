"""The order of a phase: among a few natural orders, the one whose live values need the least memory.

Flow: `plan.memory` calls it once values know their owners; views and constants take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """What the order of one step depends on.

    reads, makes: owners, each once. allocates: bytes of the arena that it adds.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    allocates: int


def best_order(
    orders: Sequence[Sequence[int]], tasks: Sequence[Task], owner_bytes: Sequence[int]
) -> list[int]:
    """The order of task numbers with the lowest peak.

    Args: orders: topological orders of all tasks. owner_bytes: bytes that are freed after an owner's last
    reader; 0 for what outlives the phase.
    """
    best: list[int] = []
    best_peak = -1
    for order in orders:
        for candidate in (list(order), eager(order, tasks, owner_bytes)):
            peak = peak_bytes(candidate, tasks, owner_bytes)
            if best_peak < 0 or peak < best_peak:
                best, best_peak = candidate, peak
    return best


def peak_bytes(order: Sequence[int], tasks: Sequence[Task], owner_bytes: Sequence[int]) -> int:
    """The most that is live at once, each owner from its maker to its last reader."""
    readers = _count_readers(tasks)
    live = peak = 0
    for number in order:
        task = tasks[number]
        live += task.allocates
        peak = max(peak, live)
        for owner in task.reads:
            readers[owner] -= 1
            if readers[owner] == 0:
                live -= owner_bytes[owner]
        for owner in task.makes:
            if owner not in readers:
                live -= owner_bytes[owner]
    return peak


def eager(order: Sequence[int], tasks: Sequence[Task], owner_bytes: Sequence[int]) -> list[int]:
    """`order`, with each task moved to where it is ready and frees at least what it allocates.

    So a weight's gradient is added to its sum as soon as it is there, and a large value is reduced at once.
    """
    remaining = _count_readers(tasks)
    maker = {owner: number for number, task in enumerate(tasks) for owner in task.makes}
    users: dict[int, list[int]] = {}
    missing = [0] * len(tasks)
    for number in order:
        for owner in tasks[number].reads:
            users.setdefault(owner, []).append(number)
            missing[number] += owner in maker
    done = [False] * len(tasks)
    result: list[int] = []

    def pays(number: int) -> bool:
        task = tasks[number]
        freed = sum([owner_bytes[owner] for owner in task.reads if remaining[owner] == 1])
        return task.allocates <= freed

    for first in order:
        waiting = [first]
        while waiting:
            number = waiting.pop()
            if done[number] or (number != first and not (missing[number] == 0 and pays(number))):
                continue
            done[number] = True
            result.append(number)
            task = tasks[number]
            for owner in task.makes:
                for user in users.get(owner, ()):
                    missing[user] -= 1
                    if missing[user] == 0:
                        waiting.append(user)
            for owner in task.reads:
                remaining[owner] -= 1
                if remaining[owner] == 1:
                    waiting.extend([user for user in users[owner] if not done[user]])
    return result


def _count_readers(tasks: Sequence[Task]) -> dict[int, int]:
    readers: dict[int, int] = {}
    for task in tasks:
        for owner in task.reads:
            readers[owner] = readers.get(owner, 0) + 1
    return readers
