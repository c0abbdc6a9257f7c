"""Nanoseconds of a call: with no tokens, which is what the call itself takes, and with one token of a small layer."""
import timeit

import gristmill
import numpy

layer = gristmill.Linear("i2_s", 16, 256, gristmill.quantize("i2_s", numpy.ones((16, 256), "f4")))
for m in 0, 1:
    x, out = numpy.ones((m, 256), "f4"), numpy.zeros((m, 16), "f4")
    for said, call in [("a new array", lambda: layer(x)), ("with out", lambda: layer(x, out=out))]:
        # The fastest of the turns: what else the machine does makes the others longer.
        best = min(timeit.repeat(call, number=5000, repeat=30)) / 5000
        print(f"{m} tokens, {said}: {best * 1e9:.0f} ns")
