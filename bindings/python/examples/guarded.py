"""A layer that goes on without a kernel from the moment on that it is forbidden."""
import gristmill, numpy

guard = gristmill.Guard(check_every=1000)
w, x = numpy.random.randn(64, 256).astype("float32"), numpy.ones((2, 256), "float32")
layer = gristmill.Linear("i2_s", 64, 256, gristmill.quantize("i2_s", w), guard=guard)
before = layer(x)
product = next(kernel["name"] for kernel in layer.receipt["kernels"] if kernel["name"].startswith("matmul."))
# The portable kernel is the last one: without it an error would say so.
if product != "matmul.i2_s.scalar":
    guard.forbid(product, "it is wrong on another machine of this type")
assert (layer(x) == before).all()
for step in layer.receipt.get("recoveries", []):
    print(step["step"], step["kernel"], "->", step["then"])
