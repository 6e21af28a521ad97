"""Faulty gemm candidates, as a user's plugin registers them: each computes D = A·Bᵀ (layout nt) wrongly in one way."""

import itertools

import accuracy_eval as ae

_turn = itertools.count()


def register():
    """Registers them all; the caller puts the registry back."""

    @ae.candidate("gemm", name="skips-a-row")
    def skips_a_row(case, tensors, out):
        """Writes every row but row 3 of the poisoned output."""
        import torch

        d = out["d"]
        full = torch.mm(tensors["a"], tensors["b"].t())
        d[:3] = full[:3]
        d[4:] = full[4:]
        return {"d": d}

    @ae.candidate("gemm", name="wobbles")
    def wobbles(case, tensors):
        """Gives another last bit on every run."""
        import torch

        d = torch.mm(tensors["a"], tensors["b"].t())
        bits = d.view(torch.int32 if d.element_size() == 4 else torch.int16)
        bits[0, 0] ^= next(_turn) % 2
        return d

    @ae.candidate("gemm", name="raises")
    def raises(case, tensors):
        """Fails like a kernel with an illegal memory access."""
        raise RuntimeError("illegal memory access was encountered")

    @ae.candidate("gemm", name="refuses", supports=lambda case, platform: "needs m % 32 == 0" if case.dims["m"] % 32 else None)
    def refuses(case, tensors):
        """Takes only some shapes."""
        return tensors["a"] @ tensors["b"].t()

    @ae.candidate("gemm", name="wrong-shape")
    def wrong_shape(case, tensors):
        """Returns the transpose."""
        return (tensors["a"] @ tensors["b"].t()).t().contiguous()

    @ae.candidate("gemm", name="halves")
    def halves(case, tensors):
        """Returns float16 whatever was asked for."""
        return (tensors["a"] @ tensors["b"].t()).half()

    @ae.candidate("gemm", name="fills-out")
    def fills_out(case, tensors, out):
        """Writes its result and returns nothing."""
        out["d"].copy_(tensors["a"] @ tensors["b"].t())

    @ae.candidate("gemm", name="eats-its-input")
    def eats_its_input(case, tensors):
        """Gives the right result and then overwrites an operand."""
        d = tensors["a"] @ tensors["b"].t()
        tensors["b"][0, 0] += 1
        return d

    buffer = {}

    @ae.candidate("gemm", name="one-buffer")
    def one_buffer(case, tensors):
        """Writes every result into the same memory; the first element counts the calls."""
        d = tensors["a"] @ tensors["b"].t()
        kept = buffer.setdefault("d", d.clone())
        kept.copy_(d)
        kept[0, 0] += next(_turn) % 2
        return kept


def register_unsteady():
    """Candidates that agree with nobody but look right on one call: each breaks a relation of the metamorphic lane."""

    @ae.candidate("gemm", name="reads-padding")
    def reads_padding(case, tensors, out):
        """Reads one element of A beyond the end of each row, and gives it the weight of B's first column."""
        import torch

        a, b = tensors["a"], tensors["b"]
        wide = a.as_strided((a.shape[0], a.shape[1] + 1), a.stride()) if a.stride(0) > a.shape[1] else torch.nn.functional.pad(a, (0, 1))
        out["d"].copy_((wide.float() @ torch.cat([b, b[:, :1]], dim=1).float().t()).to(out["d"].dtype))

    @ae.candidate("gemm", name="by-batch")
    def by_batch(case, tensors, out):
        """Scales A by the largest element of the whole batch and keeps 8 bits of it."""
        import torch

        a, b = tensors["a"].float(), tensors["b"].float()
        step = a.abs().max() / 127
        out["d"].copy_((torch.round(a / step) * step @ b.t()).to(out["d"].dtype))

    @ae.candidate("gemm", name="no-tail")
    def no_tail(case, tensors, out):
        """Takes whole blocks of 32 products only."""
        k = tensors["a"].shape[1] // 32 * 32
        out["d"].copy_(tensors["a"][:, :k] @ tensors["b"][:, :k].t())
