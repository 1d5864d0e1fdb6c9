"""What `pip install .` brings, used from outside of the source tree: the package finds its library and runs. Run by the
consumer step of tools/run_tests.py with a folder laid out as the wheel is."""

import os
import sys
from pathlib import Path

assert "FOVEA_LIBRARY" not in os.environ
import numpy
import fovea
import fovea.flashinfer

assert Path(fovea.__file__).parent.parent == Path(sys.argv[1]), fovea.__file__
attention = fovea.Attention(num_qo_heads=2, num_kv_heads=1, head_dim=16, page_tokens=4, q_dtype="f32")
attention.plan([1], [6], [[1, 0]])
kv = numpy.arange(2 * 4, dtype=numpy.float32).reshape(2, 4, 1, 1).repeat(16, axis=3)  # token t of page p holds 4 p + t
out = attention.run(numpy.zeros((1, 2, 16), numpy.float32), (kv, kv))
assert numpy.allclose(out, (4 + 5 + 6 + 7 + 0 + 1) / 6), out
