"""Which way a call took through the host program, told from what it submitted, one after the other.

The schedule of an entry point is an automaton that has all ways: its states are the submissions of the program's text,
its input are those of a call. A submission alone may look like several states; that it stands between others often
leaves one. What is still open after that is open: all states on any way that fits are candidates.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from tracemap.graph.model import Schedule, Submission
from tracemap.units import UNKNOWN

Meaning = int | str
"""What a submission is: the ordinal of the command buffer that it executes, or the id of a transfer."""
Meanings = frozenset[Meaning]


def meanings_of(submission: Submission) -> Meanings:
    """All that a state of a schedule can be."""
    return frozenset(submission.buffers) if submission.transfer is UNKNOWN else frozenset({submission.transfer})


def merged(schedules: Sequence[Schedule]) -> Schedule:
    """One schedule with the ways of all, for when it is not known which function ran."""
    first: list[int] = []
    submissions: list[Submission] = []
    for schedule in schedules:
        base = len(submissions)
        first += [base + state for state in schedule.first]
        submissions += [
            Submission(each.buffers, each.transfer, tuple(base + state for state in each.next), each.last)
            for each in schedule.submissions
        ]
    return Schedule("", tuple(first), tuple(submissions))


def narrowed(schedule: Schedule, seen: Sequence[Meanings], *, one_call: bool) -> list[Meanings]:
    """What each submission of a call can be, given all of them; as it was given where no way fits.

    Args:
        schedule: the ways that there are.
        seen: for each submission in order what it may be by itself.
        one_call: these are the submissions of one call, or of several, one after the other.
    """
    # A program that was killed leaves its last call unfinished.
    for repeats, unfinished in ((False, False), (True, False), (True, True))[0 if one_call else 1 :]:
        found = _Ways(schedule, repeats).fit(seen, unfinished=unfinished)
        if found:
            return found
    return list(seen)


@dataclass(frozen=True)
class _Ways:
    """The ways of one call, or of calls one after the other (`repeats`)."""

    schedule: Schedule
    repeats: bool

    @cached_property
    def _meanings(self) -> tuple[Meanings, ...]:
        return tuple(meanings_of(submission) for submission in self.schedule.submissions)

    # Sets of states, not single ways: of these there can be more than anyone can list, of states only as many as the
    # program has submissions.

    def fit(self, seen: Sequence[Meanings], *, unfinished: bool) -> list[Meanings]:
        """Forward over all states that can be reached, then back over those from which the end can; none: empty."""
        reached = self._forward(seen)
        ending = {state for state in reached[-1] if unfinished or self._is_last(state)} if reached else set()
        if not ending:
            return []
        return [
            frozenset[Meaning]().union(*(self._meanings[state] & meanings for state in here))
            for here, meanings in zip(self._backward(reached, ending), seen, strict=True)
        ]

    def _forward(self, seen: Sequence[Meanings]) -> list[Set[int]]:
        """For each submission the states that a way from the beginning reaches with it."""
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
        """Of the states reached those from which one of the ending ones can be."""
        kept: list[Set[int]] = [ending]
        for here in reversed(reached[:-1]):
            begins_anew = self.repeats and not kept[-1].isdisjoint(self.schedule.first)
            kept.append({state for state in here if self._leads_to(state, kept[-1], begins_anew)})
        return kept[::-1]

    def _leads_to(self, state: int, after: Set[int], begins_anew: bool) -> bool:
        return not after.isdisjoint(self.schedule.submissions[state].next) or (begins_anew and self._is_last(state))

    def _is_last(self, state: int) -> bool:
        return self.schedule.submissions[state].last
