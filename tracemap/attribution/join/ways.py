"""The path of a call through the host program, inferred from its sequence of submissions.

The schedule of an entry point is an automaton. Its states are the submissions in the program's text, its input is the
sequence of a call's submissions. A single submission may match several states; its neighbours often leave only one. If
several remain, all states on any matching path are candidates.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from tracemap.graph.model import Schedule, Submission
from tracemap.units import UNKNOWN

Meaning = int | str
"""Identity of a submission: the ordinal of the command buffer that it executes, or the id of a transfer."""
Meanings = frozenset[Meaning]


def meanings_of(submission: Submission) -> Meanings:
    """All possible identities of a state of a schedule."""
    return frozenset(submission.buffers) if submission.transfer is UNKNOWN else frozenset({submission.transfer})


def merged(schedules: Sequence[Schedule]) -> Schedule:
    """One schedule with the paths of all, for runs whose function is unknown."""
    first: list[int] = []
    submissions: list[Submission] = []
    for schedule in schedules:
        base = len(submissions)
        first += [base + state for state in schedule.first]
        submissions += [
            Submission(own.buffers, own.transfer, tuple(base + state for state in own.next), own.last)
            for own in schedule.submissions
        ]
    return Schedule("", tuple(first), tuple(submissions))


def narrowed(schedule: Schedule, seen: Sequence[Meanings], *, one_call: bool) -> list[Meanings]:
    """The candidate identities of each submission of a call, narrowed by the others; unchanged if no path matches.

    Args:
        schedule: the schedule of the function.
        seen: the candidates of each submission by itself, in order.
        one_call: whether these are the submissions of one call, or of several in sequence.
    """
    # The last call of a killed program is unfinished.
    for repeats, unfinished in ((False, False), (True, False), (True, True))[0 if one_call else 1 :]:
        matching = _Paths(schedule, repeats).fit(seen, unfinished=unfinished)
        if matching:
            return matching
    return list(seen)


@dataclass(frozen=True)
class _Paths:
    """The paths of one call, or of calls in sequence (`repeats`)."""

    schedule: Schedule
    repeats: bool

    @cached_property
    def _meanings(self) -> tuple[Meanings, ...]:
        return tuple(meanings_of(submission) for submission in self.schedule.submissions)

    # Works on sets of states rather than single paths: there can be exponentially many paths, but only as many states
    # as the program has submissions.

    def fit(self, seen: Sequence[Meanings], *, unfinished: bool) -> list[Meanings]:
        """The identities on any matching path: a forward pass, then a backward pass; empty if no path matches."""
        reached = self._forward(seen)
        ending = {state for state in reached[-1] if unfinished or self._is_last(state)} if reached else set()
        if not ending:
            return []
        return [
            frozenset[Meaning]().union(*(self._meanings[state] & meanings for state in states))
            for states, meanings in zip(self._backward(reached, ending), seen, strict=True)
        ]

    def _forward(self, seen: Sequence[Meanings]) -> list[Set[int]]:
        """For each submission, the states that a path from the start reaches with it."""
        reached: list[Set[int]] = []
        following: Set[int] = set(self.schedule.first)
        for meanings in seen:
            reached.append({state for state in following if self._meanings[state] & meanings})
            following = self._after(reached[-1])
        return reached

    def _after(self, states: Set[int]) -> Set[int]:
        following = {after for state in states for after in self.schedule.submissions[state].next}
        if self.repeats and any(map(self._is_last, states)):
            following.update(self.schedule.first)
        return following

    def _backward(self, reached: Sequence[Set[int]], ending: Set[int]) -> list[Set[int]]:
        """For each submission, the reached states that lead to an ending state."""
        leading: list[Set[int]] = [ending]
        for states in reversed(reached[:-1]):
            starts_call = self.repeats and not leading[-1].isdisjoint(self.schedule.first)
            leading.append({state for state in states if self._leads_to(state, leading[-1], starts_call)})
        return leading[::-1]

    def _leads_to(self, state: int, after: Set[int], starts_call: bool) -> bool:
        return not after.isdisjoint(self.schedule.submissions[state].next) or (starts_call and self._is_last(state))

    def _is_last(self, state: int) -> bool:
        return self.schedule.submissions[state].last
