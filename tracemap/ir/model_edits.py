"""Two versions of a model as a set of edits, and the models in between: the first version with some of the edits.

Ops of both versions are given as pairs. What is not paired, or differs, is edited. Edits are separate if each can be
made without the other: an op and its user are one edit only if the value between them exists in one version only, or
changes its type.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any, Final, NamedTuple

import networkx as nx
from networkx.utils import UnionFind

from tracemap.core.errors import ModelInvalid
from tracemap.ir.model_reader import parse_model
from tracemap.ir.parsing import BYTECODE_MAGIC, MlirParser, Operation, Value, ir, string_attribute, symbols_in, walk
from tracemap.ir.source_model import CONTROL_FLOW, FUNCTIONS

Block = Any
"""An `iree.compiler.ir.Block`."""
_MODULE: Final = "builtin.module"


@dataclass(frozen=True, slots=True)
class ModelEdit:
    """Ops that change together, by their pre-order index: those of the first version and those of the second."""

    before: tuple[int, ...]
    after: tuple[int, ...]


class Origin(NamedTuple):
    """The operation that one of a mixed model was copied from: its version, and its pre-order index there."""

    is_after: bool
    place: int


@dataclass(frozen=True, slots=True)
class MixedModel:
    """A model between two versions, and the origins of its operations in pre-order.

    `content` is text without locations if both versions are, else bytecode.
    """

    content: bytes
    origins: tuple[Origin, ...]


@dataclass(eq=False, slots=True)
class _Unit:
    """An operation of either version, or a pair of them.

    `block`: of the first version; the blocks that can be edited exist in both versions. `changed`: whether the versions
    differ in it. `is_entered`: its regions are compared as well, so it is not replaced as a whole; if such a function
    changed, its arguments and attributes did.
    """

    before: Operation | None
    after: Operation | None
    block: Block
    changed: bool
    is_entered: bool = False

    @property
    def sides(self) -> tuple[Operation, ...]:
        return tuple(operation for operation in (self.before, self.after) if operation is not None)


class ModelEdits:
    """The edits between two versions of a model.

    Args:
        before: the first version, text or bytecode.
        after: the second version.
        pairs: the index of an op before, and whether the op itself was edited, by the index of the op after.

    Raises:
        ModelInvalid: a version does not parse.
    """

    def __init__(self, before: bytes, after: bytes, pairs: Mapping[int, tuple[int, bool]]) -> None:
        self._parser, self._model, self._pairs = MlirParser(), before, pairs
        self.is_plain = not any(each.startswith(BYTECODE_MAGIC) or b"loc(" in each for each in (before, after))
        """Whether both versions are text without locations, so that those of mixtures are not needed."""
        # The modules must live as long as their operations.
        self._before, self._after = parse_model(self._parser, before).module, parse_model(self._parser, after).module
        self._old, self._new = list(walk(self._before.operation)), list(walk(self._after.operation))
        self._old_index = {operation: index for index, operation in enumerate(self._old)}
        self._new_index = {operation: index for index, operation in enumerate(self._new)}
        self._unit_of: dict[Operation, _Unit] = {}
        self._same: dict[Value, Value] = {}
        """Values of the second version by those of the first with the same type; both exist at the same place."""
        self._back: dict[Value, Value] = {}
        self._units: list[_Unit] = []
        self._pair_blocks(_only_block(self._before.operation), _only_block(self._after.operation))
        self._groups = self._grouped()
        self.edits = tuple(
            ModelEdit(
                tuple(sorted(self._old_index[unit.before] for unit in group if unit.before is not None)),
                tuple(sorted(self._new_index[unit.after] for unit in group if unit.after is not None)),
            )
            for group in self._groups
        )

    # ---- pairs of operations

    def _pair_blocks(self, old: Block, new: Block) -> None:
        olds, news = _operations(old), _operations(new)
        partners = self._partners(olds, news)
        for operation in news:
            partner = partners.get(operation)
            unit = _Unit(partner, operation, old, changed=partner is None)
            self._add(unit)
            if partner is None:
                continue
            for before, after in zip(partner.results, operation.results, strict=False):
                if before.type == after.type:
                    self._same[before], self._back[after] = after, before
            if self._can_enter(partner, operation):
                unit.is_entered = True
                unit.changed = _attributes(partner) != _attributes(operation)
                for before, after in zip(_blocks(partner), _blocks(operation), strict=True):
                    for old_argument, new_argument in _paired_arguments(before, after):
                        self._same[old_argument], self._back[new_argument] = new_argument, old_argument
                    self._pair_blocks(before, after)
        paired = set(partners.values())
        for operation in (each for each in olds if each not in paired):
            self._add(_Unit(operation, None, old, changed=True))

    def _add(self, unit: _Unit) -> None:
        self._units.append(unit)
        for operation in unit.sides:
            self._unit_of[operation] = unit

    def _partners(self, olds: list[Operation], news: list[Operation]) -> dict[Operation, Operation]:
        """Operations of a block before, by those after: symbols by name, terminators, and the given pairs."""
        symbols = {(operation.name, _symbol(operation)): operation for operation in olds if _symbol(operation)}
        partners, inside = dict[Operation, Operation](), set(olds)
        for operation in news:
            if symbol := _symbol(operation):
                partner = symbols.get((operation.name, symbol))
            else:
                index, _ = self._pairs.get(self._new_index[operation], (-1, False))
                partner = self._old[index] if index >= 0 and self._old[index] in inside else None
            if partner is not None:
                partners[operation] = partner
        if olds and news and _is_terminator(olds[-1]) and _is_terminator(news[-1]):
            taken = {before: after for after, before in partners.items()}.get(olds[-1])
            if taken is not None:
                del partners[taken]
            partners[news[-1]] = olds[-1]
        return _without_cycles(partners, olds, news)

    def _can_enter(self, old: Operation, new: Operation) -> bool:
        """Whether the blocks of a pair correspond: those of functions, and of control flow with equal arguments."""
        blocks = _blocks(old), _blocks(new)
        regions = [region for operation in (old, new) for region in operation.regions]
        if len(blocks[0]) != len(blocks[1]) or any(len(list(region.blocks)) != 1 for region in regions):
            return False
        if old.name in FUNCTIONS:
            return bool(blocks[0])
        return (
            old.name in CONTROL_FLOW
            and old.name == new.name
            and len(old.regions) == len(new.regions)
            and all(
                [argument.type for argument in before.arguments] == [argument.type for argument in after.arguments]
                for before, after in zip(*blocks, strict=True)
            )
            and [result.type for result in old.results] == [result.type for result in new.results]
            and _attributes(old) == _attributes(new)
            and self._same_operands(old.operands, new.operands)
        )

    def _same_operands(self, old: Iterable[Value], new: Iterable[Value]) -> bool:
        olds, news = list(old), list(new)
        return len(olds) == len(news) and all(
            value in self._same and self._same[value] == after for value, after in zip(olds, news, strict=True)
        )

    # ---- edits

    def _grouped(self) -> list[list[_Unit]]:
        """The units of each edit, in the order of the second version, then those that only the first has."""
        for unit in self._units:
            unit.changed = unit.changed or self._differs(unit)
        sets, symbols = UnionFind(self._units), self._changed_symbols()
        for unit in self._units:
            for operation in unit.sides:
                for value in _read_values(operation, entered=unit.is_entered):
                    owner = _owner(value)
                    if value not in self._same and value not in self._back and owner in self._unit_of:
                        sets.union(unit, self._unit_of[owner])
            if unit.is_entered and unit.changed:
                sets.union(unit, *self._returns_that_changed(unit))
            for operation in unit.sides:
                if not unit.is_entered:
                    for name in _references(operation) & symbols.keys():
                        for definition in symbols[name]:
                            sets.union(unit, definition)
        groups: dict[_Unit, list[_Unit]] = defaultdict(list)
        for unit in self._units:
            groups[sets[unit]].append(unit)
        return [group for group in groups.values() if any(unit.changed for unit in group)]

    def _returns_that_changed(self, unit: _Unit) -> list[_Unit]:
        """The unit that ends a function, if the types of the function's results changed."""
        ends = [_operations(_only_block(operation))[-1] for operation in unit.sides]
        types = [[operand.type for operand in end.operands] for end in ends]
        return [self._unit_of[ends[0]]] if types[0] != types[1] else []

    def _differs(self, unit: _Unit) -> bool:
        old, new = unit.before, unit.after
        if old is None or new is None:
            return True
        if unit.is_entered:
            return unit.changed
        index, edited = self._pairs.get(self._new_index[new], (-1, True))
        if index != self._old_index[old] or edited or _symbol(new):
            edited = old.name != new.name or _attributes(old) != _attributes(new) or _text(old) != _text(new)
        values = _read_values(old, entered=False), _read_values(new, entered=False)
        types = [[result.type for result in operation.results] for operation in (old, new)]
        return edited or types[0] != types[1] or not self._same_operands(*values)

    def _changed_symbols(self) -> dict[str, list[_Unit]]:
        """Units of symbols that exist in one version only, or that differ as a whole, by name."""
        units: dict[str, list[_Unit]] = defaultdict(list)
        for unit in self._units:
            for name in {_symbol(operation) for operation in unit.sides} - {""}:
                if unit.changed:
                    units[name].append(unit)
        return units

    # ---- models in between

    def model_with(self, chosen: Collection[int]) -> MixedModel:
        """The first version with the edits of these numbers.

        Raises:
            ModelInvalid: the edits do not make a valid model.
        """
        return _Mixture(self, [unit for number in sorted(chosen) for unit in self._groups[number]]).model()

    def index_after(self, origin: Origin) -> int:
        """The index of an operation in the second version; -1 if only the first version has it."""
        if origin.is_after:
            return origin.place
        partner = self._unit_of[self._old[origin.place]].after if self._old[origin.place] in self._unit_of else None
        return -1 if partner is None else self._new_index[partner]


class _Mixture:
    """A copy of the first version in which some units are replaced."""

    def __init__(self, edits: ModelEdits, units: list[_Unit]) -> None:
        self._edits, self._units = edits, units
        self._module = parse_model(edits._parser, edits._model).module
        copies = list(walk(self._module.operation))
        for index, operation in enumerate(copies):
            _set_numbers(operation, _ORIGIN, (0, index))
        self._copy_of = dict(zip(edits._old, copies, strict=True))
        self._value_of = {
            value: copied
            for operation, copy in self._copy_of.items()
            for value, copied in zip(_defined(operation), _defined(copy), strict=True)
        }
        """Values of the copy, by those of either version."""
        for after, before in edits._back.items():
            self._value_of[after] = self._value_of[before]

    def model(self) -> MixedModel:
        """The copy with the units of the second version."""
        # Blocks are compared by identity, so by their operation and place.
        blocks = {_block_key(unit.block): self._block_of(unit.block) for unit in self._units}
        for block in blocks.values():
            for place, operation in enumerate(_operations(block)):
                _set_numbers(operation, _RANK, (place, 0, 0))
        functions = [unit for unit in self._units if unit.is_entered]
        replaced = [unit for unit in self._units if not unit.is_entered]
        gone_arguments = [self._change_signature(unit) for unit in functions]
        new = [self._clone(unit) for unit in replaced if unit.after is not None]
        for clone in new:
            for operation in walk(clone):
                for place, operand in enumerate(operation.operands):
                    if operand in self._value_of:
                        operation.operands[place] = self._value_of[operand]
        gone = [unit.before for unit in replaced if unit.before is not None]
        for old in sorted(gone, key=self._edits._old_index.__getitem__, reverse=True):
            operation = self._copy_of[old]
            if any(list(result.uses) for result in operation.results):
                raise ModelInvalid("an edit removes a value that is still read")
            operation.erase()
        for block, count in gone_arguments:
            for _ in range(count):
                block.erase_argument(0)
        for block in blocks.values():
            self._sort(block)
        operations = list(walk(self._module.operation))
        origins = [Origin(bool(side), index) for side, index in map(partial(_numbers, name=_ORIGIN), operations)]
        for operation in operations:
            del operation.attributes[_ORIGIN]
        return MixedModel(self._content(), tuple(origins))

    def _block_of(self, block: Block) -> Block:
        owner, place = _block_key(block)
        return _blocks(self._copy_of[owner])[place]

    def _change_signature(self, unit: _Unit) -> tuple[Block, int]:
        """Give a function the arguments and attributes of the second version; returns the number of old arguments."""
        assert unit.before is not None
        assert unit.after is not None
        copy = self._copy_of[unit.before]
        block = _only_block(copy)
        count = len(block.arguments)
        for argument in _only_block(unit.after).arguments:
            added = block.add_argument(argument.type, argument.location)
            if argument in self._edits._back:
                before = self._edits._back[argument]
                self._value_of[before].replace_all_uses_with(added)
                self._value_of[before] = added
            self._value_of[argument] = added
        for name in unit.before.attributes:
            if name not in unit.after.attributes:
                del copy.attributes[name]
        for name in unit.after.attributes:
            copy.attributes[name] = unit.after.attributes[name]
        return block, count

    def _clone(self, unit: _Unit) -> Operation:
        """Copy the second version's operation into the block, next to its partner or the one before it."""
        block = self._block_of(unit.block)
        assert unit.after is not None
        clone = unit.after.clone(ip=ir.InsertionPoint.at_block_begin(block)).operation
        for original, operation in zip(walk(unit.after), walk(clone), strict=True):
            _set_numbers(operation, _ORIGIN, (1, self._edits._new_index[original]))
        _set_numbers(clone, _RANK, self._rank_of(unit))
        for value, copied in zip(unit.after.results, clone.results, strict=True):
            if unit.before is not None and value in self._edits._back:
                self._value_of[value].replace_all_uses_with(copied)
                before = self._edits._back[value]
                self._value_of[before] = copied
            self._value_of[value] = copied
        return clone

    def _rank_of(self, unit: _Unit) -> _Rank:
        after = unit.after
        assert after is not None
        number = self._edits._new_index[after]
        if unit.before is not None:
            return _rank(self._copy_of[unit.before])
        place = -1
        for operation in _operations(after.block):
            if operation == after:
                break
            partner = self._edits._unit_of[operation].before
            if partner is not None:
                place = _rank(self._copy_of[partner])[0]
        return (place, 1, number)

    def _sort(self, block: Block) -> None:
        """Put operations after those that they read, otherwise in the order of both versions."""
        operations = _operations(block)
        ranks = [_rank(operation) for operation in operations]
        for operation in operations:
            del operation.attributes[_RANK]
        if not operations or not any(map(_is_terminator, operations)):
            return  # a module, whose operations define no values
        # Terminators stay last, although nothing reads them.
        ranks = [
            (len(operations), 0, 0) if _is_terminator(operation) else rank
            for operation, rank in zip(operations, ranks, strict=True)
        ]
        previous = None
        for place in _sorted_places(operations, ranks):
            if previous is not None:
                operations[place].move_after(operations[previous])
            previous = place

    def _content(self) -> bytes:
        root = self._module.operation
        try:
            root.verify()
        except ir.MLIRError as error:
            raise ModelInvalid(f"the edits do not make a valid model: {error}") from error
        if self._edits.is_plain:
            text: str = root.get_asm(enable_debug_info=False, assume_verified=True)
            return text.encode()
        out = io.BytesIO()
        root.write_bytecode(out)
        return out.getvalue()


# Attributes of operations in a copy while edits are made, since the bindings hash operations by their content.
_RANK: Final = "tracemap.rank"
_ORIGIN: Final = "tracemap.origin"
_Rank = tuple[int, int, int]
"""The place of an operation in the first version or after which it goes, whether it is new, and its own order."""


def _set_numbers(operation: Operation, name: str, numbers: Iterable[int]) -> None:
    operation.attributes[name] = ir.DenseI64ArrayAttr.get(list(numbers), operation.context)


def _numbers(operation: Operation, name: str) -> tuple[int, ...]:
    return tuple(operation.attributes[name])


def _rank(operation: Operation) -> _Rank:
    place, is_new, order = _numbers(operation, _RANK)
    return (place, is_new, order)


def _sorted_places(operations: list[Operation], ranks: list[_Rank]) -> list[int]:
    """The order of operations: each after those that it reads, otherwise by rank.

    Raises:
        ModelInvalid: a value depends on itself.
    """
    places = {operation: place for place, operation in enumerate(operations)}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(places.values())
    for place, operation in enumerate(operations):
        graph.add_edges_from((places[maker], place) for maker in _makers(operation, places))
    try:
        return list(nx.lexicographical_topological_sort(graph, key=ranks.__getitem__))
    except nx.NetworkXUnfeasible as error:
        raise ModelInvalid("the edits make a value depend on itself") from error


def _without_cycles(
    partners: dict[Operation, Operation], olds: list[Operation], news: list[Operation]
) -> dict[Operation, Operation]:
    """The pairs of a block without those that cross others, so that no mixture has a value that depends on itself.

    Pairs may be in any order unless values lead from one to the other in both directions, each in another version.
    """
    while cyclic := _cycles(partners, olds, news):
        places = {operation: place for place, operation in enumerate(olds)}
        for group in cyclic:
            ordered = [operation for operation in news if operation in group]
            kept = _longest_increasing([places[partners[operation]] for operation in ordered])
            for number, operation in enumerate(ordered):
                if number not in kept:
                    del partners[operation]
    return partners


def _cycles(partners: dict[Operation, Operation], olds: list[Operation], news: list[Operation]) -> list[set[Operation]]:
    """Groups of paired operations after that depend on each other if both versions' values are taken together."""
    node_of = {**{operation: operation for operation in (*olds, *news)}, **{old: new for new, old in partners.items()}}
    graph: nx.DiGraph[Operation] = nx.DiGraph()
    for operation, node in node_of.items():
        graph.add_edges_from((node_of[maker], node) for maker in _makers(operation, node_of) if node_of[maker] != node)
    groups = [group for group in nx.strongly_connected_components(graph) if len(group) > 1]
    return [group & partners.keys() for group in groups]


def _longest_increasing(values: list[int]) -> frozenset[int]:
    """The places of a longest increasing subsequence."""
    tails: list[int] = []
    previous = [-1] * len(values)
    for place, value in enumerate(values):
        length = bisect_left([values[tail] for tail in tails], value)
        previous[place] = tails[length - 1] if length else -1
        tails[length : length + 1] = [place]
    found, place = set[int](), tails[-1] if tails else -1
    while place >= 0:
        found.add(place)
        place = previous[place]
    return frozenset(found)


# ---- operations


def _operations(block: Block) -> list[Operation]:
    return [child.operation for child in block.operations]


def _blocks(operation: Operation) -> list[Block]:
    return [block for region in operation.regions for block in region.blocks]


def _only_block(operation: Operation) -> Block:
    (block,) = _blocks(operation)
    return block


def _block_key(block: Block) -> tuple[Operation, int]:
    owner = block.owner.operation
    return owner, next(place for place, own in enumerate(_blocks(owner)) if own == block)


def _symbol(operation: Operation) -> str:
    return string_attribute(operation, "sym_name")


def _attributes(operation: Operation) -> dict[str, object]:
    return {name: operation.attributes[name] for name in operation.attributes}


def _text(operation: Operation) -> str:
    return str(operation.get_asm(enable_debug_info=False, use_local_scope=True, assume_verified=True))


def _is_terminator(operation: Operation) -> bool:
    return not operation.results and operation.name.rpartition(".")[2] in _TERMINATORS


_TERMINATORS: Final = frozenset({"return", "yield", "condition"})


def _defined(operation: Operation) -> list[Value]:
    """The values that an operation defines: its results, and the arguments of its blocks."""
    return [*operation.results, *(argument for block in _blocks(operation) for argument in block.arguments)]


def _paired_arguments(old: Block, new: Block) -> list[tuple[Value, Value]]:
    """Arguments of equal type: at the same place, or in order if their number differs."""
    olds, news = list(old.arguments), list(new.arguments)
    if len(olds) == len(news):
        return [pair for pair in zip(olds, news, strict=True) if pair[0].type == pair[1].type]
    types = [[str(argument.type) for argument in side] for side in (olds, news)]
    runs = SequenceMatcher(None, types[0], types[1], autojunk=False).get_matching_blocks()
    return [(olds[i + step], news[j + step]) for i, j, size in runs for step in range(size)]


def _owner(value: Value) -> Operation:
    owner = value.owner
    return (owner.owner if isinstance(owner, ir.Block) else owner).operation


def _read_values(operation: Operation, *, entered: bool) -> list[Value]:
    """The operands of an operation, and what its regions read from outside, unless they are entered."""
    values = list(operation.operands)
    if not entered:
        inside = list(walk(operation))[1:]
        own = {value for each in (operation, *inside) for value in _defined(each)} - set(operation.results)
        values += [value for each in inside for value in each.operands if value not in own]
    return values


def _makers(operation: Operation, inside: Collection[Operation]) -> Iterator[Operation]:
    """The operations among these that make the values an operation and its regions read."""
    for value in _read_values(operation, entered=False):
        maker = _owner(value)
        if maker in inside and not isinstance(value.owner, ir.Block):
            yield maker


def _references(operation: Operation) -> set[str]:
    """The symbols that an operation and its regions refer to."""
    found = set[str]()
    for each in walk(operation):
        for name in each.attributes:
            attribute = each.attributes[name]
            if isinstance(attribute, ir.FlatSymbolRefAttr | ir.SymbolRefAttr):
                found.update(symbols_in(str(attribute)))
    return found
