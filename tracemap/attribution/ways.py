"""Which way a call took through the host program, told from what it submitted, one after the other.

The schedule of an entry point has all ways. A submission alone may look like several places of it; that it stands
between others often leaves one. What is still open after that is open: all places on any way that fits are candidates.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from tracemap.graph.model import Schedule, Submission
from tracemap.units import UNKNOWN

Meaning = int | str
"""What a submission is: the ordinal of the command buffer that it executes, or the id of a transfer."""
Meanings = frozenset[Meaning]


def meanings_of(submission: Submission) -> Meanings:
    """All that a place in a schedule can be."""
    return frozenset(submission.buffers) if submission.transfer is UNKNOWN else frozenset({submission.transfer})


def merged(schedules: Sequence[Schedule]) -> Schedule:
    """One schedule with the ways of all, for when it is not known which function ran."""
    first: list[int] = []
    submissions: list[Submission] = []
    for schedule in schedules:
        base = len(submissions)
        first += [base + place for place in schedule.first]
        submissions += [
            Submission(each.buffers, each.transfer, tuple(base + place for place in each.next), each.last)
            for each in schedule.submissions
        ]
    return Schedule("", tuple(first), tuple(submissions))


def told_apart(schedule: Schedule, seen: Sequence[Meanings], *, one_call: bool) -> list[Meanings]:
    """What each submission of a call can be, given all of them; as it was given where no way fits.

    Args:
        schedule: the ways that there are.
        seen: for each submission in order what it may be by itself.
        one_call: these are the submissions of one call, or of several, one after the other.
    """
    ways = _Ways(schedule)
    # A program that was killed leaves its last call unfinished.
    for repeats, unfinished in ((False, False), (True, False), (True, True))[0 if one_call else 1 :]:
        found = ways.fit(seen, repeats=repeats, unfinished=unfinished)
        if found:
            return found
    return list(seen)


@dataclass(frozen=True)
class _Ways:
    schedule: Schedule

    def fit(self, seen: Sequence[Meanings], *, repeats: bool, unfinished: bool) -> list[Meanings]:
        """Forward over all places that can be reached, then back over those from which the end can; none: empty."""
        places = self.schedule.submissions
        reached: list[Set[int]] = []
        for meanings in seen:
            can_begin = not reached or (repeats and any(places[place].last for place in reached[-1]))
            following = {after for place in reached[-1] for after in places[place].next} if reached else set()
            following |= set(self.schedule.first) if can_begin else set()
            reached.append({place for place in following if meanings_of(places[place]) & meanings})
        if not reached or not reached[-1]:
            return []
        ending = {place for place in reached[-1] if unfinished or places[place].last}
        kept: list[Set[int]] = [ending]
        for here in reversed(reached[:-1]):
            begins_anew = repeats and not kept[-1].isdisjoint(self.schedule.first)
            kept.append(
                {
                    place
                    for place in here
                    if not kept[-1].isdisjoint(places[place].next) or (begins_anew and places[place].last)
                }
            )
        if not ending:
            return []
        return [
            frozenset[Meaning]().union(*(meanings_of(places[place]) & meanings for place in here))
            for here, meanings in zip(reversed(kept), seen, strict=True)
        ]
