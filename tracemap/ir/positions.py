"""Work on positions: the operations that say which element is meant, and those that they say it for.

Where the compiler makes one loop of several dimensions, or reads backwards, a kernel's region divides and counts before
it reads. Such operations carry the location of whatever the region was made for; what they cost is of the operation
that needs the position.
"""

from __future__ import annotations

from tracemap.ir.parsing import MlirParser, Operation

_INDEX = "index"
_STRUCTURED = ("linalg.", "iree_linalg_ext.")
_MOST_USES = 64
"""How many operations behind a position are looked at."""


def computes_index(parser: MlirParser, operation: Operation) -> bool:
    """Whether all results of an operation are indices, and it has any."""
    results = operation.results
    return len(results) > 0 and all(parser.text_of(result.type) == _INDEX for result in results)


def served(parser: MlirParser, operation: Operation) -> tuple[Operation, ...]:
    """The operations that a position is worked out for, behind further work on positions; else the operation itself.

    Only in the regions of structured operations: elsewhere positions are of tiles, loops and sizes.
    """
    if not computes_index(parser, operation) or not operation.parent.name.startswith(_STRUCTURED):
        return (operation,)
    working = [operation]
    found: dict[Operation, None] = {}
    for position in working:  # which grows meanwhile
        for result in position.results:
            for use in result.uses:
                user = use.owner.operation
                if not computes_index(parser, user):
                    found[user] = None
                elif user not in working and len(working) < _MOST_USES:
                    working.append(user)
    return tuple(found) or (operation,)
