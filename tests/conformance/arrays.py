"""Tensors for the conformance cases: numpy on the CPU, torch on a CUDA device, under the few names that the cases need."""
import numpy


class NumpyArrays:
    """float16 tensors on the CPU; fp8 is not there."""

    device = "cpu"
    math = numpy
    dtypes = {"f16"}

    def normal(self, random, shape, dtype="f16"):
        return random.standard_normal(shape, dtype=numpy.float32).astype(numpy.float16)

    def ints(self, values):
        return numpy.asarray(values, dtype=numpy.int32)

    def long_ints(self, values):
        return numpy.asarray(values, dtype=numpy.int64)

    def host_ints(self, values):
        return self.ints(values)

    def bools(self, values):
        return numpy.asarray(values, dtype=bool)

    def floats(self, values):
        return numpy.asarray(values, dtype=numpy.float32)

    def halves(self, values):
        return numpy.asarray(values, dtype=numpy.float16)

    def double(self, x):
        return x.astype(numpy.float64)

    def numpy(self, x):
        return x

    def copy(self, x):
        return x.copy()

    def name_of(self, dtype):
        return "float16"

    def is_alive(self):
        return True


class TorchArrays:
    """float16 and e4m3 tensors on a CUDA device."""

    dtypes = {"f16", "fp8_e4m3"}

    def __init__(self, device):
        import torch
        self.math, self.device = torch, device

    def normal(self, random, shape, dtype="f16"):
        seed = int(random.integers(1 << 31))
        generator = self.math.Generator(device=self.device).manual_seed(seed)
        values = self.math.randn(shape, generator=generator, device=self.device, dtype=self.math.float16)
        return values if dtype == "f16" else values.to(self.math.float8_e4m3fn)

    def ints(self, values):
        return self.math.as_tensor(numpy.asarray(values), dtype=self.math.int32, device=self.device)

    def long_ints(self, values):
        return self.math.as_tensor(numpy.asarray(values), dtype=self.math.int64, device=self.device)

    def host_ints(self, values):
        return self.math.as_tensor(numpy.asarray(values), dtype=self.math.int32)

    def bools(self, values):
        return self.math.as_tensor(numpy.asarray(values), dtype=self.math.bool, device=self.device)

    def floats(self, values):
        return self.math.as_tensor(numpy.asarray(values), dtype=self.math.float32, device=self.device)

    def halves(self, values):
        return self.math.as_tensor(numpy.asarray(values), dtype=self.math.float16, device=self.device)

    def double(self, x):
        return x.float().double()  # e4m3 has no way straight to fp64

    def numpy(self, x):
        return x.cpu().numpy()

    def copy(self, x):
        return x.clone()

    def name_of(self, dtype):
        return self.math.float16 if dtype == "f16" else self.math.float8_e4m3fn

    def is_alive(self):
        """False once a kernel did what ends a context."""
        try:
            self.math.cuda.synchronize()
            return True
        except RuntimeError:
            return False


def arrays_for(device):
    return NumpyArrays() if device == "cpu" else TorchArrays(device)
