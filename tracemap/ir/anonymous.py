"""Models without the names, texts and weights of the model that they come from."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from tracemap.core.errors import ModelInvalid
from tracemap.core.locations import unescape
from tracemap.ir.attributes import shape_of
from tracemap.ir.model_reader import parse_model
from tracemap.ir.parsing import Attribute, MlirParser, Module, Operation, ir, nested, string_attribute, walk

_SYMBOL_NAME: Final = "sym_name"
_KNOWN: Final = ("torch.", "torch_c.", "mhlo.", "stablehlo.", "iree.", "linalg.", "util.", "hal.", "stream.", "flow.")
"""Prefixes of attributes of frontends and compilers."""
_PRINTED: Final = re.compile(r"\d+|arg\d+|c(st)?(_?\d+)*|c\d+_i\d+(_\d+)?|extracted\w*|true|false")
_ARGUMENT: Final = re.compile(rb"%([A-Za-z_][\w.$-]*)")
_BLOB: Final = re.compile(r'^\s+([\w.$-]+|"[^"]*"): "0x([0-9A-Fa-f]+)"', re.MULTILINE)
_RESOURCE: Final = re.compile(r'dense_resource<([\w.$-]+|"[^"]*")>')
_LITERAL: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_OF_VALUES: Final = ("arg_attrs", "res_attrs")
"""Metadata of a function's arguments and results."""
_ALIGNMENT_DIGITS: Final = 8
"""Digits ahead of a resource's data, which say how to align it (mlir/lib/AsmParser/Parser.cpp)."""
_BYTES: Final = {"f64": 8, "f32": 4, "f16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1}


def names_in(data: bytes) -> frozenset[str]:
    """All names and texts of a model: of functions, globals and arguments, in its attributes and its locations.

    Raises:
        ModelInvalid: the model does not parse.
    """
    parser = MlirParser()
    parsed = parse_model(parser, data)
    names: set[str] = set()
    for operation in walk(parsed.module.operation):
        names |= _names_of(parser, operation)
        names |= set(_strings(str(operation.location.attr)))
        for region in operation.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    names |= set(_strings(str(argument.location.attr)))
    if not parsed.is_bytecode:
        names |= {name.decode() for name in _ARGUMENT.findall(data)}
    names |= {name.rpartition("/")[2] for name in names}
    return frozenset(name for name in names if name not in ("", "-") and not _PRINTED.fullmatch(name))


def names_left(text: str, names: Collection[str]) -> tuple[str, ...]:
    """Those of some names that a model without locations has.

    Raises:
        ModelInvalid: the model does not parse.
    """
    parser = MlirParser()
    found: set[str] = set()
    for operation in walk(parser.parse(text).operation):
        found |= _names_of(parser, operation)
    return tuple(sorted(found.intersection(names)))


def _names_of(parser: MlirParser, operation: Operation) -> set[str]:
    found = {name for name in _metadata(operation) if not name.startswith(_KNOWN)}
    for name in operation.attributes:
        attribute = operation.attributes[name]
        if name == _SYMBOL_NAME:
            found.add(string_attribute(operation, name))
        elif _is_resource(attribute):
            found |= {key.strip('"') for key in _RESOURCE.findall(str(attribute))}
        elif not _is_data(attribute) and not _is_word(operation, name):
            found |= set(_strings(parser.text_of(attribute)))
            found |= _keys(attribute)
    return found


def _keys(attribute: Attribute) -> set[str]:
    """The names of the entries of a dictionary, of those inside it, and of those in a list."""
    if isinstance(attribute, ir.ArrayAttr):
        return set().union(*map(_keys, attribute))
    if not isinstance(attribute, ir.DictAttr):
        return set()
    named = [attribute[index] for index in range(len(attribute))]
    own = {entry.name for entry in named if not entry.name.startswith(_KNOWN)}
    return own.union(*(_keys(entry.attr) for entry in named))


def _strings(text: str) -> Iterator[str]:
    for match in re.finditer(r'"((?:[^"\\]|\\.)*)"', text):
        yield unescape(match[0])


def _metadata(operation: Operation) -> set[str]:
    """The names of attributes that are no part of the operation's definition.

    Those that are one stand in `<{…}>` in the generic form.
    """
    names = set(operation.attributes)
    if all("." in name for name in names):
        return names
    generic = operation.get_asm(
        print_generic_op_form=True, skip_regions=True, enable_debug_info=False, large_elements_limit=1
    )
    text = _LITERAL.sub("", str(generic))
    own, depth = "", 0
    for part in re.split(r"([{}])", text.partition("<{")[2]):
        depth += {"{": 1, "}": -1}.get(part, 0)
        if depth < 0:
            break
        own += part if depth == 0 else ""
    return names - set(re.findall(r"(?:^|, )([A-Za-z_]\w*)(?= =|,|$)", own))


def _is_data(attribute: Attribute) -> bool:
    return isinstance(attribute, ir.DenseElementsAttr) or _is_resource(attribute)


def _is_resource(attribute: Attribute) -> bool:
    """Whether an attribute is a constant whose data is a named resource."""
    return not isinstance(attribute, ir.DenseElementsAttr) and str(attribute).startswith("dense_resource<")


def _is_word(operation: Operation, name: str) -> bool:
    """Whether an attribute is a word of the compiler: the name of an operator of ONNX, or a visibility."""
    return name == "sym_visibility" or (operation.name == "torch.operator" and name == "name")


# ---- edits


def items_of(text: str) -> tuple[str, ...]:
    """Descriptions of texts, metadata and data of constants that `anonymous_text` replaces.

    Raises:
        ModelInvalid: the model does not parse.
    """
    parser = MlirParser()
    module = _without_resources(parser, text)
    return tuple(
        f"{operation.name}: {name} ({parser.text_of(operation.attributes[name].type)})"
        if _is_data(operation.attributes[name])
        else f"{operation.name}: {name}"
        for operation, name in _items(parser, module)
    )


def is_data_item(item: str) -> bool:
    """Whether an item of `items_of` is the data of a constant."""
    return item.endswith(")")


def anonymous_text(text: str, function: str, names: Collection[str], keep: Collection[int] = ()) -> str:
    """A model with other symbols, texts and data of constants, and without metadata.

    Args:
        text: the model, without locations.
        function: its public function.
        names: names that the result must not have.
        keep: indices in `items_of` of what stays.

    Raises:
        ModelInvalid: the result is not valid.
    """
    parser = MlirParser()
    module = _without_resources(parser, text)
    with parser.context, ir.Location.unknown():
        for index, (operation, name) in reversed(list(enumerate(_items(parser, module)))):
            if index not in keep:
                _replace(parser, operation, name)
        _rename(module, function, names)
        try:
            module.operation.verify()
        except ir.MLIRError as error:
            raise ModelInvalid(f"without its names the model is not valid: {error}") from error
    result = str(module.operation.get_asm(enable_debug_info=False))
    return result if result.endswith("\n") else result + "\n"


def _without_resources(parser: MlirParser, text: str) -> Module:
    """Parse a model, and move the data of constants from named resources to the constants."""
    module = parser.parse(text, printed=True)
    blobs = {key.strip('"'): data for key, data in _BLOB.findall(text)}
    for operation in walk(module.operation):
        for name in list(operation.attributes):
            attribute = operation.attributes[name]
            if _is_resource(attribute):
                (key,) = _RESOURCE.findall(str(attribute))
                data = blobs.get(key.strip('"'), "")[_ALIGNMENT_DIGITS:]
                with suppress(ModelInvalid):
                    operation.attributes[name] = parser.attribute(f'dense<"0x{data}"> : {attribute.type}')
    return module


def _items(parser: MlirParser, module: Module) -> Iterator[tuple[Operation, str]]:
    for operation in walk(module.operation):
        metadata = {name for name in _metadata(operation) if not name.startswith(_KNOWN)}
        for name in list(operation.attributes):
            attribute = operation.attributes[name]
            if name == _SYMBOL_NAME and operation != module.operation:
                continue
            if name in metadata or name in _OF_VALUES:
                yield operation, name
            elif _is_data(attribute):
                if not (isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat):
                    yield operation, name
            elif _has_text(parser, operation, name):
                yield operation, name


def _has_text(parser: MlirParser, operation: Operation, name: str) -> bool:
    """Recognize attributes with texts or keys that may be names."""
    attribute = operation.attributes[name]
    return bool(_keys(attribute)) or ('"' in parser.text_of(attribute) and not _is_word(operation, name))


def _replace(parser: MlirParser, operation: Operation, name: str) -> None:
    attribute = operation.attributes[name]
    if name in _metadata(operation) or name in (*_OF_VALUES, _SYMBOL_NAME):
        del operation.attributes[name]
    elif _is_data(attribute):
        operation.attributes[name] = parser.attribute(_seeded(str(attribute.type)))
    elif isinstance(attribute, ir.DictAttr):
        operation.attributes[name] = parser.attribute("{}")
    else:
        # Some names must have a dialect.
        text = _LITERAL.sub(lambda match: '"s.s"' if "." in match[0] else '"s"', parser.text_of(attribute))
        operation.attributes[name] = parser.attribute(text)


def _seeded(kind: str) -> str:
    """Elements of a type in MLIR's syntax that are the same in every process: floats in [-1, 1), integers 0 and 1."""
    import numpy as np

    shape = shape_of(kind)
    element = re.sub(r"^[su]i", "i", kind.rpartition("x")[2].rstrip(">"))
    count = shape.elements
    if element not in _BYTES or not isinstance(count, int):
        return f"dense<{'true' if element == 'i1' else 1 if element.startswith('i') else '1.0'}> : {kind}"
    source = random.Random(0)
    numbers = np.array([source.random() for _ in range(min(count, 4099))])
    numbers = np.resize(numbers, count)
    values = 2 * numbers - 1 if element.startswith("f") else np.round(numbers)
    data = values.astype(f"<{element[0]}{_BYTES[element]}").tobytes().hex().upper()
    return f'dense<"0x{data}"> : {kind}'


def new_function_name(names: Collection[str]) -> str:
    """The name of the function in an anonymous model: `f`, unless the original has that name."""
    name = "f"
    while name in names:
        name += "_"
    return name


def _rename(module: Module, function: str, names: Collection[str]) -> None:
    """Name the function `f` and all other symbols `s0`, `s1`, … in their order."""
    taken = {*names, *(string_attribute(top, _SYMBOL_NAME) for top in nested(module.operation))}
    count = 0
    for top in nested(module.operation):
        old = string_attribute(top, _SYMBOL_NAME)
        if not old:
            continue
        new = new_function_name(names) if old == function else f"s{count}"
        count += old != function
        while new in taken:
            new += "_"
        taken.add(new)
        ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
        ir.SymbolTable.set_symbol_name(top, new)
