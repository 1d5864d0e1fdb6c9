"""The C ABI's Python side is what the header makes, and what the generator does not understand is an error."""

import ctypes
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import check_abi

HEADER = """
/* a record: struct x { int y; } */
#define FOVEA_API
typedef enum fovea_status { FOVEA_OK = 0, FOVEA_BAD = 1 } fovea_status;
enum { FOVEA_A = 0, /* first */ FOVEA_B = 7 };
typedef struct fovea_tensor { void* data; struct { uint8_t code; uint16_t lanes; } dtype; const int64_t* shape; } fovea_tensor;
typedef struct fovea_one_thing { size_t struct_bytes; const char* name; float codes[3]; const fovea_tensor* x; } fovea_one_thing;
typedef struct fovea_object fovea_object;
FOVEA_API const char* fovea_text(void);
FOVEA_API fovea_status fovea_make(const fovea_one_thing* options, const fovea_tensor* x, int32_t n,
                                  fovea_object** made);
"""


def test_records_numbers_and_functions():
    made = {}
    exec(check_abi.made(HEADER), made)
    assert (made["OK"], made["BAD"], made["A"], made["B"]) == (0, 1, 0, 7)
    assert made["Tensor"].dtype.offset == 8 and made["Tensor"].shape.offset == 16 and made["TensorDtype"].lanes.offset == 2
    assert made["OneThing"].x.offset == 32 and ctypes.sizeof(made["OneThing"]) == 40
    assert made["FUNCTIONS"]["fovea_text"] == (ctypes.c_char_p, [])
    result, arguments = made["FUNCTIONS"]["fovea_make"]
    assert result is ctypes.c_int32 and arguments[0] is ctypes.POINTER(made["OneThing"])
    assert arguments[1:3] == [ctypes.c_void_p, ctypes.c_int32]


@pytest.mark.parametrize("bad", ["typedef struct fovea_x { long double y; } fovea_x;", "typedef struct fovea_x { int a } fovea_y;",
                                 "enum { FOVEA_C = 1 << 2 };", "FOVEA_API fovea_status fovea_f(fovea_none x);"])
def test_what_is_not_understood(bad):
    with pytest.raises(ValueError):
        check_abi.made(HEADER + bad)
