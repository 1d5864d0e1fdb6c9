#!/usr/bin/env python3
"""The C ABI for Python: python/fovea/_abi.py is made of include/fovea/fovea.h, the one place where its records, numbers and
functions are declared. Checks that the file is what the header makes; with --fix writes it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from repo import ROOT, report

HEADER = Path("include/fovea/fovea.h")
MADE = Path("python/fovea/_abi.py")
OPENING = '''"""Records, numbers and functions of the C ABI for ctypes, made of include/fovea/fovea.h by tools/check_abi.py --fix.

Used by _library.py. Pointers are addresses (c_void_p) but for texts and for records that callers make here.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any
'''
SCALARS = {"void": "None", "size_t": "c_size_t", "float": "c_float", "double": "c_double", "fovea_status": "c_int32",
           **{f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}}
FIELD = re.compile(r"^(?P<type>.*?[\s*])(?P<name>\w+)(\[(?P<count>\d+)\])?$")


def camel(name: str) -> str:
    """fovea_paged_kv -> PagedKv"""
    return "".join(part.capitalize() for part in name.removeprefix("fovea_").split("_"))


class Header:
    """What the header declares, as lines of Python."""

    def __init__(self, text: str):
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        self.records: set[str] = set()
        self.lines: list[str] = []
        self.functions: list[str] = []
        declared = 0
        for match in re.finditer(r"typedef struct (\w+) \{(.*?)\} \1;|(?:typedef )?enum (?:\w+ )?\{(.*?)\}|FOVEA_API (.*?)\((.*?)\);",
                                 text, re.S):
            declared += 1
            record, fields, numbers, function, arguments = match.groups()
            if record:
                self.record(record, fields)
            elif numbers:
                self.numbers(numbers)
            else:
                self.function(function, arguments)
        words = len(re.findall(r"\btypedef struct \w+ \{|\benum\b[^;]*?\{|\bFOVEA_API \w", text))
        if declared != words:
            raise ValueError(f"{HEADER}: {words} records, enums and functions, {declared} understood")

    def numbers(self, text: str) -> None:
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = item.partition("=")
            self.lines.append(f"{name.strip().removeprefix('FOVEA_')} = {int(value)}")
        self.lines.append("")

    def record(self, name: str, text: str) -> None:
        inner = re.compile(r"struct \{([^{}]*)\} (\w+);")
        for fields, field in inner.findall(text):
            self.record(f"{name}_{field}", fields)
        text = inner.sub(lambda match: f"{name}_{match.group(2)} {match.group(2)};", text)
        fields = [self.field(part.strip()) for part in text.split(";") if part.strip()]
        self.lines += ["", f"class {camel(name)}(Structure):", "    _fields_ = [", *(f"        {field}," for field in fields), "    ]", ""]
        self.records.add(name)

    def field(self, text: str) -> str:
        match = FIELD.match(text)
        if match is None:
            raise ValueError(f"{HEADER}: field '{text}' is not understood")
        kind = self.type(match["type"], lend={"fovea_tensor"})
        return f'("{match["name"]}", {kind}{" * " + match["count"] if match["count"] else ""})'

    def function(self, declaration: str, arguments: str) -> None:
        match = FIELD.match(" ".join(declaration.split()))
        parts = [] if arguments.strip() == "void" else [" ".join(part.split()) for part in arguments.split(",")]
        kinds = []
        for part in parts:
            argument = FIELD.match(part)
            if argument is None:
                raise ValueError(f"{HEADER}: argument '{part}' is not understood")
            kinds.append(self.type(argument["type"], lend={"fovea_tensor"}))
        if match is None:
            raise ValueError(f"{HEADER}: function '{declaration}' is not understood")
        self.functions.append(f'    "{match["name"]}": ({self.type(match["type"], set())}, [{", ".join(kinds)}]),')

    def type(self, text: str, lend: set[str]) -> str:
        """ctypes' name of a C type; records in `lend` go by address."""
        name = text.replace("const", " ").replace("*", " ").strip()
        stars = text.count("*")
        if stars == 0:
            return SCALARS[name] if name in SCALARS else camel(name) if name in self.records else self.unknown(text)
        if name == "char" and stars == 1:
            return "c_char_p"
        if stars == 2:
            return "POINTER(c_void_p)"
        return f"POINTER({camel(name)})" if name in self.records - lend else "c_void_p"

    @staticmethod
    def unknown(text: str) -> str:
        raise ValueError(f"{HEADER}: type '{text}' is not understood")


def made(text: str) -> str:
    """The Python file for a header's text."""
    header = Header(text)
    body = re.sub(r"\n{4,}", "\n\n\n", "\n".join(header.lines))
    return f"{OPENING}\n{body}\n\nFUNCTIONS: dict[str, tuple[Any, list[Any]]] = {{\n" + "\n".join(header.functions) + "\n}\n"


def main() -> int:
    wanted = made((ROOT / HEADER).read_text())
    if "--fix" in sys.argv[1:]:
        (ROOT / MADE).write_text(wanted)
    there = (ROOT / MADE).read_text() if (ROOT / MADE).exists() else ""
    return report("check_abi", 1, [] if there == wanted else [f"{MADE}: not what {HEADER} makes; run tools/check_abi.py --fix"])


if __name__ == "__main__":
    sys.exit(main())
