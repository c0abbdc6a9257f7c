"""torch's `nn.Linear` replaced by layers of ternary weights (i2_s) on the processor, and their times beside torch's bf16.

    OMP_WAIT_POLICY=passive python torch_linear.py [N K]

Prints microseconds for one token and for 32, and ends with an error if the outputs are not those of the same weights in torch's f32.
Without the setting, torch's OpenMP threads spin for a while after each of its operations, on the cores that gristmill's threads want."""
import copy
import statistics
import sys
import time

import gristmill

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    sys.exit("this example needs torch, which is not installed: pip install torch")


class TernaryLinear(torch.nn.Module):
    """An `nn.Linear` for inference, its weights quantized to -1, 0 and 1 times one scale. Inputs and outputs are f32.

    `quantizer` is one of i2_s: "absmean" rounds weights of any kind as BitNet b1.58 does, "sign" is exact for weights that are
    ternary already."""

    def __init__(self, linear: torch.nn.Linear, threads: gristmill.Threads, quantizer: str):
        super().__init__()
        n, k = linear.weight.shape
        weights = linear.weight.detach().float().contiguous()
        blocks = gristmill.quantize("i2_s", weights, quantizer=quantizer)
        self.layer = gristmill.Linear("i2_s", n, k, blocks, threads=threads)
        self.bias = None if linear.bias is None else linear.bias.detach().float().contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Memory is lent in both directions; only inputs that are not contiguous are copied.
        return torch.from_dlpack(self.layer(x.detach().contiguous(), bias=self.bias))


def replace_linears(module: torch.nn.Module, threads: gristmill.Threads, quantizer: str) -> None:
    """Every `nn.Linear` below a module becomes a `TernaryLinear`."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, TernaryLinear(child, threads, quantizer))
        else:
            replace_linears(child, threads, quantizer)


def microseconds(calls, turns=9, seconds=0.02):
    """The median of the turns of each call. They take turns, so that what else the machine does meets all of them."""
    times = [[] for _ in calls]
    for _ in range(turns):
        for call, own in zip(calls, times):
            started, count = time.perf_counter(), 0
            while time.perf_counter() - started < seconds:
                call()
                count += 1
            own.append((time.perf_counter() - started) / count * 1e6)
    return [statistics.median(own) for own in times]


def main(n: int = 2560, k: int = 2560) -> None:
    torch.manual_seed(20)
    model = torch.nn.Sequential(torch.nn.Linear(k, n), torch.nn.SiLU(), torch.nn.Linear(n, k))
    with torch.inference_mode():
        # Ternary weights, as a model that was trained for them has.
        for linear in model[0], model[2]:
            linear.weight.copy_(torch.randint(-1, 2, linear.weight.shape) * 0.02)
        x = torch.randn(5, k)
        expected = model(x)
        halves = copy.deepcopy(model).bfloat16()
        count = torch.get_num_threads()
        replace_linears(model, gristmill.Threads(count), "sign")

        found = model(x)
        error = float((found - expected).norm() / expected.norm())
        print(f"{k} -> {n} -> {k}: relative error {error:.1e} against f32 with the same weights")
        if not error < 0.03:  # NaN is none either.
            sys.exit("the outputs are not those of the same weights")
        print(f"{count} threads, microseconds; tokens, torch bf16, gristmill i2_s, ratio")
        for m in 1, 32:
            x = torch.randn(m, k)
            half = x.bfloat16()
            theirs, ours = microseconds([lambda: halves(half), lambda: model(x)])
            print(f"{m:6} {theirs:10.0f} {ours:10.0f} {theirs / ours:8.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
