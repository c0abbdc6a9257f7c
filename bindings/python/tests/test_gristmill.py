"""The wheel as its users have it. Results are compared with sums of integers by numpy, with values that another program
dequantized, and, where GRISTMILL_C_LIBRARY names the shared library of bindings/c, with that, bit for bit."""

import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import threading

import gristmill
import numpy
import pytest

GGUF = pathlib.Path(__file__).parents[3] / "tests/data/gguf"
TENSOR = "blk.0.attn_q.weight"
N, K = 48, 256


def ternary(n=N, k=K):
    """Weights that i2_s holds exactly, with scale 1."""
    return numpy.random.default_rng(1).integers(-1, 2, (n, k)).astype(numpy.float32)


def layer(**options):
    return gristmill.Linear("i2_s", N, K, gristmill.quantize("i2_s", ternary(), quantizer="sign"), **options)


def tokens(m):
    """Integers whose greatest is 127 in each row: quantized to int8 they stay what they are."""
    x = numpy.random.default_rng(2).integers(-127, 128, (m, K)).astype(numpy.float32)
    x[:, 7] = 127
    return x


def exact(x):
    return (x.astype(numpy.int64) @ ternary().astype(numpy.int64).T).astype(numpy.float32)


@pytest.mark.parametrize("m", [1, 2, 9, 33])
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_products_are_sums_of_integers(m, threads):
    linear = layer(threads=threads and gristmill.Threads(threads))
    x = tokens(m)
    y = linear(x)
    assert y.dtype == numpy.float32 and y.shape == (m, N)
    assert numpy.array_equal(y, exact(x))
    bias = numpy.arange(N, dtype=numpy.float32)
    assert numpy.array_equal(linear(x, bias=bias), exact(x) + bias)


def test_shapes_of_tokens():
    linear, x = layer(), tokens(6)
    assert (linear.n, linear.k) == (N, K) and linear.weight_bytes >= N * K / 4
    assert numpy.array_equal(linear(x.reshape(2, 3, K)), exact(x).reshape(2, 3, N))
    assert numpy.array_equal(linear(x[0]), exact(x)[0])
    assert linear(numpy.zeros((0, K), numpy.float32)).shape == (0, N)
    out = numpy.full((6, N), numpy.nan, numpy.float32)
    assert linear(x, out=out) is out and numpy.array_equal(out, exact(x))
    x.setflags(write=False)
    assert numpy.array_equal(linear(x), exact(x))


def test_a_file_has_the_values_that_another_program_found():
    model = gristmill.Model(GGUF / "i2_s.gguf")
    plan = {row["tensor"]: row for row in model.plan(m=4)}
    assert plan[TENSOR]["kernel"].startswith("matmul.i2_s.") and plan[TENSOR]["reason"] is None
    k, n = plan[TENSOR]["dims"]
    linear = model.linear(TENSOR, threads=gristmill.Threads(2))
    values = numpy.fromfile(GGUF / "i2_s.attn_q.f32", "<f4").reshape(n, k)
    assert (linear.n, linear.k) == (n, k)
    # Rows of the identity, which int8 holds exactly: each gives a column of the weights.
    columns = linear(numpy.eye(k, dtype=numpy.float32)[:40])
    assert numpy.allclose(columns, values.T[:40], rtol=1e-6)
    on_rocm = {row["tensor"]: row for row in model.plan(device="rocm:0")}
    assert on_rocm[TENSOR]["kernel"] is None and "no kernel" in on_rocm[TENSOR]["reason"]


def test_guarded_layers_do_without_what_is_forbidden():
    guard = gristmill.Guard(check_every=1)
    x = tokens(1)
    model = gristmill.Model(GGUF / "i2_s.gguf")
    plain = model.linear(TENSOR)
    of_file = model.linear(TENSOR, guard=guard)
    linear = layer(guard=guard, threads=gristmill.Threads(2))
    assert linear.kept_bytes == N * K // 4 + 32 and layer().kept_bytes == 0
    assert numpy.array_equal(linear(x), exact(x)) and numpy.array_equal(of_file(x), plain(x))
    assert guard.quarantined == [] and "recoveries" not in linear.receipt
    ran = next(kernel["name"] for kernel in linear.receipt["kernels"] if kernel["name"].startswith("matmul."))
    if ".scalar" in ran:
        pytest.skip("there is no other kernel here")
    assert guard.forbid(ran, "a test") and not guard.forbid(ran, "once more")
    assert [(kernel["kernel"], kernel["why"]) for kernel in guard.quarantined] == [(ran, "a test")]
    # All layers under the guard, with the same numbers.
    assert numpy.array_equal(linear(x), exact(x)) and numpy.array_equal(of_file(x), plain(x))
    for guarded in (linear, of_file):
        steps = guarded.receipt["recoveries"]
        assert [(step["step"], step["kernel"], step["success"]) for step in steps] == [("decided-again", ran, True)]
    with pytest.raises(gristmill.Error, match="unknown kernel `matmull`"):
        guard.forbid("matmull", "")


def test_blocks_and_back():
    w = ternary()
    blocks = gristmill.quantize("i2_s", w, quantizer="sign")
    assert blocks.dtype == numpy.uint8 and len(blocks) == gristmill.tensor_bytes("i2_s", N, K)
    assert numpy.array_equal(gristmill.dequantize("i2_s", N, K, blocks), w)
    assert numpy.array_equal(gristmill.dequantize("i2_s", N, K, bytes(blocks), first_row=3, rows=2), w[3:5])
    threads = gristmill.Threads(3)
    assert numpy.array_equal(gristmill.dequantize("i2_s", N, K, blocks, threads=threads), w)
    assert numpy.array_equal(gristmill.quantize("i2_s", w, threads=threads), gristmill.quantize("i2_s", w))
    for lent in bytearray(blocks), memoryview(bytes(blocks)):
        assert numpy.array_equal(gristmill.Linear("i2_s", N, K, lent)(tokens(1)), exact(tokens(1)))


def test_what_the_build_holds():
    names = [format["name"] for format in gristmill.formats()]
    assert "i2_s" in names and gristmill.__version__
    kernels = gristmill.kernels("i2_s")
    assert all(kernel["format"] == "i2_s" for kernel in kernels) and len(gristmill.kernels()) > len(kernels)
    decision = gristmill.decide("matmul", "i2_s", N, K, m=3)
    assert decision["chosen"] in [kernel["name"] for kernel in kernels]
    assert decision["chosen"] in gristmill.explain("matmul", "i2_s", N, K, m=3)
    assert "no kernel for matmul" in gristmill.explain("matmul", "i2_s", N, K, device="cuda:0")
    linear = layer()
    assert linear.receipt["kernels"] == []
    linear(tokens(3))
    assert decision["chosen"] in [kernel["name"] for kernel in linear.receipt["kernels"]]
    assert linear.receipt["fallbacks"] == []


def bad(x):
    return lambda: layer()(x)


misaligned = numpy.frombuffer(bytes(4 * K + 1), numpy.uint8)[1:].view(numpy.float32)
ERRORS = [
    (TypeError, "float64, expected float32", bad(tokens(1).astype(numpy.float64))),
    (TypeError, "big-endian", bad(tokens(1).astype(">f4"))),
    (TypeError, "x is a list", bad([1.0] * K)),
    (TypeError, "x is a NoneType", bad(None)),
    (ValueError, "not C-contiguous", bad(tokens(2)[:, ::-1])),
    (ValueError, "not C-contiguous", bad(numpy.asfortranarray(tokens(3)))),
    (ValueError, "not aligned", bad(misaligned)),
    (gristmill.ShapeError, r"x has shape \[1, 255\], expected rows of 256", bad(tokens(1)[:, 1:].copy())),
    (gristmill.ShapeError, "no dimensions", bad(numpy.array(1, numpy.float32))),
    (gristmill.DataError, "row 1, column 3", bad(numpy.where(numpy.arange(2 * K) == K + 3, numpy.nan, 1).astype("f4").reshape(2, K))),
    (gristmill.ShapeError, r"out has shape \[2, 48\], expected \[1, 48\]", lambda: layer()(tokens(1), out=numpy.zeros((2, N), "f4"))),
    # A copy would be right and its results lost.
    (TypeError, r"out is an array of float64(.|\n)*numpy\.empty\(out\.shape, numpy\.float32\)", lambda: layer()(tokens(1), out=numpy.zeros((1, N)))),
    (ValueError, r"out is not C-contiguous\n.*numpy\.empty\(out\.shape, numpy\.float32\)", lambda: layer()(tokens(2), out=numpy.zeros((N, 2), "f4").T)),
    (ValueError, "too big", lambda: gristmill.Linear("i2_s", 1024, K, bytes(gristmill.tensor_bytes("i2_s", 1024, K)))(numpy.zeros((2**52, 0, K), "f4"))),
    (gristmill.ShapeError, "expected 48", lambda: layer()(tokens(1), bias=numpy.zeros(3, "f4"))),
    (gristmill.NoKernelError, "no kernel is described for rocm", lambda: layer(device="rocm:0")),
    (gristmill.Error, "unknown device", lambda: layer(device="gpu")),
    (gristmill.Error, "did you mean `i2_s`", lambda: gristmill.tensor_bytes("i2_z", N, K)),
    (gristmill.ShapeError, "multiple of 128", lambda: gristmill.quantize("i2_s", numpy.zeros((1, 3), "f4"))),
    (gristmill.ShapeError, r"expected \[n, k\]", lambda: gristmill.quantize("i2_s", numpy.zeros(K, "f4"))),
    (gristmill.ShapeError, "overflow", lambda: gristmill.tensor_bytes("i2_s", 2**63, K)),
    (OverflowError, "negative", lambda: gristmill.tensor_bytes("i2_s", -1, K)),
    (gristmill.ShapeError, "holds 5 bytes", lambda: gristmill.Linear("i2_s", N, K, b"bytes")),
    (TypeError, "blocks is a str", lambda: gristmill.Linear("i2_s", N, K, "bytes")),
    (TypeError, "memoryview.*is not C-contiguous", lambda: gristmill.Linear("i2_s", N, K, memoryview(bytes(6208))[::2])),
    (TypeError, "memoryview.*: its items have 4 bytes", lambda: gristmill.Linear("i2_s", N, K, memoryview(bytes(3104)).cast("f"))),
    (gristmill.Error, "i2_s\0", lambda: gristmill.tensor_bytes("i2_s\0", N, K)),
    (gristmill.FileError, "NUL byte", lambda: gristmill.Model("i2_s.gguf\0")),
    (UnicodeEncodeError, "surrogates", lambda: gristmill.tensor_bytes("i2_\udc80", N, K)),
    (TypeError, r"blocks is an array of float32(.|\n)*gristmill\.quantize\(format, blocks\)", lambda: gristmill.dequantize("i2_s", 1, K, numpy.zeros(96, "f4"))),
    (gristmill.DataError, "row 0, column 0", lambda: gristmill.Linear("i2_s", 1, 128, b"\xff" * 64)),
    (gristmill.ShapeError, "rows 40 and 9", lambda: gristmill.dequantize("i2_s", N, K, bytes(gristmill.tensor_bytes("i2_s", N, K)), first_row=40, rows=9)),
    (gristmill.Error, "at most", lambda: gristmill.Threads(2**40)),
    (ValueError, "count is 0", lambda: gristmill.Threads(0)),
    (gristmill.Error, "no quantizer `best`", lambda: gristmill.quantize("i2_s", ternary(), quantizer="best")),
    (TypeError, "Threads", lambda: layer(threads=2)),
    (gristmill.FileError, "none.gguf", lambda: gristmill.Model("none.gguf")),
    (gristmill.FileError, "GGUF", lambda: gristmill.Model(__file__)),
    (gristmill.Error, TENSOR, lambda: gristmill.Model(GGUF / "i2_s.gguf").linear("blk.0.attn_p.weight")),
    (gristmill.Error, "no quantized format", lambda: gristmill.Model(GGUF / "i2_s.gguf").linear("blk.0.attn_norm.weight")),
    (gristmill.NoKernelError, "cargo feature", lambda: gristmill.Model(GGUF / "iq2_s.gguf").linear("blk.0.ffn_up.weight")),
    (gristmill.NoKernelError, "rocm", lambda: gristmill.Model(GGUF / "i2_s.gguf").linear(TENSOR, device="rocm:0")),
]


@pytest.mark.parametrize("kind, words, call", ERRORS, ids=[f"{kind.__name__}-{words}" for kind, words, _ in ERRORS])
def test_bad_input_is_an_exception(kind, words, call):
    with pytest.raises(kind, match=words) as raised:
        call()
    assert type(raised.value) is kind


def test_no_memory_for_results_is_a_memory_error():
    program = """
import gristmill, numpy, resource
n = m = 1 << 14
layer = gristmill.Linear("i2_s", n, 256, bytes(gristmill.tensor_bytes("i2_s", n, 256)))
x = numpy.ones((m, 256), "f4")
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (n * m * 2),) * 2)
try:
    layer(x)
except MemoryError as error:
    print("no memory:", error)
print(layer(x[:2]).shape)
"""
    if not pathlib.Path("/proc/self/statm").exists():
        pytest.skip("the system does not tell how much memory a process has")
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("no memory: ") and said.stdout.endswith("(2, 16384)\n")


def test_another_interpreter_of_the_process_gets_an_import_error():
    program = """
import sys, threading
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import gristmill, numpy
other = interpreters.create()
try:
    said = interpreters.run_string(other, "import gristmill")
except Exception as error:
    said = error
assert "ImportError" in str(said), said
interpreters.destroy(other)
x = numpy.ones((1, 256), "f4")
print(gristmill.Linear("i2_s", 64, 256, gristmill.quantize("i2_s", numpy.ones((64, 256), "f4")))(x).shape)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    if "No module named '_xxsubinterpreters'" in said.stderr:
        pytest.skip("this Python has no module for other interpreters")
    assert (said.returncode, said.stdout) == (0, "(1, 64)\n"), said.stderr


def test_outputs_and_inputs_are_apart():
    square = gristmill.Linear("i2_s", K, K, gristmill.quantize("i2_s", ternary(K, K)))
    x = tokens(2)
    for shared in x, x[:1]:
        with pytest.raises(ValueError, match="out"):
            square(x[: len(shared)], out=shared)
    with pytest.raises(ValueError, match="out shares memory"):
        square(Lender(x), out=x)
    fixed = numpy.zeros((2, K), numpy.float32)
    fixed.setflags(write=False)
    with pytest.raises(ValueError, match="can't be written"):
        square(x, out=fixed)


class Lender:
    """Lends an array through DLPack, as torch does, and is no array of numpy."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_memory_is_lent_through_dlpack():
    x = tokens(2)
    y = layer()(Lender(x))
    assert numpy.array_equal(y, exact(x))
    lent = numpy.from_dlpack(y)
    assert lent.ctypes.data == y.ctypes.data
    with pytest.raises(TypeError, match="float64"):
        layer()(Lender(x.astype(numpy.float64)))


def test_handles_may_be_dropped_in_any_order():
    threads = gristmill.Threads(3)
    model = gristmill.Model(GGUF / "i2_s.gguf")
    linear, other = model.linear(TENSOR, threads=threads), layer(threads=threads)
    y = other(tokens(2))
    del threads, model, other
    gc.collect()
    assert numpy.array_equal(y, exact(tokens(2)))
    assert linear(numpy.ones((1, linear.k), numpy.float32)).shape == (1, linear.n)


def test_threads_of_python_share_a_layer():
    linear, x = layer(threads=gristmill.Threads(2)), tokens(5)
    wrong = []

    def calls():
        for _ in range(50):
            if not numpy.array_equal(linear(x), exact(x)):
                wrong.append(1)

    running = [threading.Thread(target=calls) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong
    assert sum(kernel["launches"] for kernel in linear.receipt["kernels"]) >= 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_computes_alone():
    linear, x = layer(threads=gristmill.Threads(3)), tokens(33)
    expected = linear(x)
    child = os.fork()
    if child == 0:
        same = numpy.array_equal(linear(x), expected)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "end", ["pass", "sys.exit(0)", "gristmill.kept = (t, layer)", "del gristmill, numpy", "os.fork() or sys.exit(0); os.wait()"]
)
def test_the_interpreter_ends_while_threads_live(end):
    program = f"""
import gristmill, numpy, os, sys, threading
t = gristmill.Threads(3)
layer = gristmill.Linear("i2_s", 64, 256, gristmill.quantize("i2_s", numpy.ones((64, 256), "f4")), threads=t)
x = numpy.ones((400, 256), "f4")
def calls():
    while True:
        layer(x)
threading.Thread(target=calls, daemon=True).start()
layer(x)
print("done", flush=True)
{end}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


def test_the_example_of_the_readme():
    folder = pathlib.Path(__file__).parents[1]
    program = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert (folder / "examples/linear.py").read_text().endswith(program)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.startswith("(2, 64) matmul.i2_s.")


def test_the_guarded_example():
    program = pathlib.Path(__file__).parents[1] / "examples/guarded.py"
    said = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, timeout=60)
    only = not any(k["runs_here"] and k["op"] == "matmul" and k["isa"] != "scalar" for k in gristmill.kernels("i2_s"))
    assert only or said.stdout.startswith("decided-again matmul.i2_s."), said.stdout


TORCH_EXAMPLE = pathlib.Path(__file__).parents[1] / "examples/torch_linear.py"


def test_the_torch_example_says_that_torch_is_missing():
    program = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({str(TORCH_EXAMPLE)!r}, run_name='__main__')"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout) == (1, "") and "needs torch" in said.stderr and "Traceback" not in said.stderr


def test_the_torch_example_replaces_layers():
    pytest.importorskip("torch", reason="no torch")
    said = subprocess.run([sys.executable, TORCH_EXAMPLE, "128", "256"], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0 and "relative error" in said.stdout, said.stderr


def test_tensors_of_torch_are_lent_without_a_copy():
    torch = pytest.importorskip("torch", reason="no torch")
    x = torch.from_numpy(tokens(3))
    y = layer()(x)
    back = torch.from_dlpack(y)
    assert back.data_ptr() == y.ctypes.data and numpy.array_equal(y, exact(tokens(3)))
    # The memory of a tensor that starts out as ours, behind an offset, and as an output.
    out = torch.full((3, N), torch.nan)
    assert layer()(x[1:], out=out[1:].numpy()).ctypes.data == out[1:].data_ptr()
    assert torch.equal(out[1:], back[1:]) and out[0].isnan().all()
    del y
    gc.collect()
    assert numpy.array_equal(back.numpy(), exact(tokens(3)))
    # What torch does not lend, or not so, is an error that says what to do.
    for refused, kind, words in [
        (x.clone().requires_grad_(), TypeError, r"x\.detach\(\)"),
        (x.bfloat16(), TypeError, "float32 on the processor"),
        (torch.empty((3, K), device="meta"), TypeError, "on the processor"),
        (x.double(), TypeError, "float64, expected float32"),
        (x.t().contiguous().t(), ValueError, "not C-contiguous"),
    ]:
        with pytest.raises(kind, match=words) as raised:
            layer()(refused)
        assert type(raised.value) is kind


def test_what_does_not_lend_its_memory_is_a_type_error():
    class Elsewhere(Lender):
        def __dlpack__(self, **options):
            raise BufferError("it is elsewhere")

    with pytest.raises(TypeError, match="it is elsewhere\\n  help: .* float32 on the processor") as raised:
        layer()(Elsewhere(tokens(1)))
    assert isinstance(raised.value.__cause__, BufferError)

    class Interrupted(Lender):
        def __dlpack__(self, **options):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        layer()(Interrupted(tokens(1)))


@pytest.mark.skipif("GRISTMILL_C_LIBRARY" not in os.environ, reason="GRISTMILL_C_LIBRARY names no library")
@pytest.mark.parametrize("format", [format["name"] for format in gristmill.formats() if format["quantizers"]])
def test_the_bits_of_the_library(format):
    c = ctypes.CDLL(os.environ["GRISTMILL_C_LIBRARY"])
    c.gm_last_error.restype = ctypes.c_char_p
    size, pointer = ctypes.c_size_t, ctypes.c_void_p

    def call(function, *arguments):
        assert function(*arguments) == 0, c.gm_last_error().decode()

    random = numpy.random.default_rng(3)
    n, k, m = 20, 512, 5
    w = random.standard_normal((n, k), numpy.float32)
    x = random.standard_normal((m, k), numpy.float32)
    bytes = gristmill.tensor_bytes(format, n, k)
    blocks, y = numpy.zeros(bytes, numpy.uint8), numpy.zeros((m, n), numpy.float32)
    name, none = format.encode(), pointer()
    at = lambda array: pointer(array.ctypes.data)
    call(c.gm_quantize, name, none, size(n), size(k), at(w), size(w.size), at(blocks), size(bytes))
    assert numpy.array_equal(gristmill.quantize(format, w), blocks)
    linear, workspace = pointer(), pointer()
    call(c.gm_linear_new, name, size(n), size(k), at(blocks), size(bytes), none, none, ctypes.byref(linear))
    call(c.gm_workspace_new, ctypes.byref(workspace))
    call(c.gm_linear_forward, linear, at(x), size(x.size), size(m), none, at(y), size(y.size), workspace, none)
    ours = gristmill.Linear(format, n, k, blocks)(x)
    assert numpy.array_equal(ours.view(numpy.uint32), y.view(numpy.uint32)) and numpy.any(ours)
    c.gm_linear_free(linear)
    c.gm_workspace_free(workspace)
