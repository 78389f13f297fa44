"""The declarations of the package against ``kaml.h``."""

import ctypes
import pathlib
import re
import unittest

from kaml import Status
from kaml import _native as native

HEADER = pathlib.Path(__file__).parents[2] / "crates/kaml-capi/include/kaml.h"
CODE = re.sub(r"//.*", "", HEADER.read_text())

SCALARS = {
    "int": ctypes.c_int,
    "bool": ctypes.c_bool,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "kaml_namespace_id": ctypes.c_uint32,
    "kaml_status": ctypes.c_int,
}
#: What C spells as a pointer and ctypes has a name for.
POINTERS = {
    "void *": ctypes.c_void_p,
    "char *": ctypes.c_char_p,
    "void **": ctypes.POINTER(ctypes.c_void_p),
    "char **": ctypes.POINTER(ctypes.c_char_p),
}


def ctype(text):
    """A type of C, as ctypes has it."""
    text = re.sub(r"\b(const|struct|enum)\b", " ", text)
    stars = text.count("*")
    name = text.replace("*", " ").strip()
    if name == "void" and stars == 0:
        return None
    known = POINTERS.get(f"{name} {'*' * stars}")
    if known is not None:
        return known
    found = native.STRUCTS.get(name) or native.CALLBACKS.get(name) or SCALARS[name]
    for _ in range(stars):
        found = ctypes.POINTER(found)
    return found


def declared(text):
    """``type name``, ``type *name`` or ``type name[count]`` as a type and a name."""
    kind, name, count = re.fullmatch(r"\s*(.*?[\s*])(\w+)(?:\[(\w+)\])?\s*", text, re.S).groups()
    found = ctype(kind)
    if count:
        found = found * int(native.CONSTANTS.get(count, count))
    return name, found


class Header(unittest.TestCase):
    """Nothing is declared otherwise, nothing is left out."""

    def test_functions(self):
        prototypes = re.findall(r"^((?:\w+\s+)*[\w]+[\s*]+)(kaml_\w+)\(([^)]*)\);", CODE, re.M)
        self.assertEqual({name for _, name, _ in prototypes}, set(native.FUNCTIONS))
        for answer, name, arguments in prototypes:
            arguments = [] if arguments.strip() == "void" else arguments.split(",")
            wanted = (ctype(answer), [declared(argument)[1] for argument in arguments])
            self.assertEqual(native.FUNCTIONS[name], wanted, name)

    def test_callbacks(self):
        callbacks = re.findall(r"^typedef (\w+) \(\*(\w+)\)\(([^)]*)\);", CODE, re.M)
        self.assertEqual({name for _, name, _ in callbacks}, set(native.CALLBACKS))
        for answer, name, arguments in callbacks:
            found = native.CALLBACKS[name]
            wanted = [declared(argument)[1] for argument in arguments.split(",")]
            self.assertEqual((found._restype_, list(found._argtypes_)), (ctype(answer), wanted), name)

    def test_structures(self):
        structures = re.findall(r"typedef struct (\w+) \{(.*?)\}", CODE, re.S)
        self.assertEqual({name for name, _ in structures}, set(native.STRUCTS))
        for name, fields in structures:
            wanted = [declared(field) for field in fields.split(";") if field.strip()]
            self.assertEqual([tuple(field) for field in native.STRUCTS[name]._fields_], wanted, name)

    def test_statuses(self):
        body = re.search(r"typedef enum kaml_status \{(.*?)\}", CODE, re.S).group(1)
        wanted = {name: int(number) for name, number in re.findall(r"KAML_(\w+) = (\d+)", body)}
        self.assertEqual({status.name: int(status) for status in Status}, wanted)

    def test_constants(self):
        wanted = {name: int(number) for name, number in re.findall(r"^#define (KAML_\w+) (\d+)$", CODE, re.M)}
        self.assertEqual(native.CONSTANTS, wanted)


if __name__ == "__main__":
    unittest.main()
