"""A product of quantized weights."""
import gristmill, numpy

w, x = numpy.random.randn(64, 256).astype("float32"), numpy.ones((2, 256), "float32")
layer = gristmill.Linear("i2_s", 64, 256, gristmill.quantize("i2_s", w), threads=gristmill.Threads(2))
print(layer(x).shape, layer.receipt["kernels"][0]["name"])
