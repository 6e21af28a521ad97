"""verify(): a user's function, forward and backward, against a reference, on seeded inputs.

    import accuracy_eval as ae
    v = ae.verify(my_matmul, reference="gemm", inputs={"a": ae.seeded((64, 256), "bfloat16"), "b": ae.seeded((256, 32), "bfloat16")})
    v = ae.verify(my_norm, reference=lambda x, w: x / x.square().mean(-1, keepdim=True).sqrt() * w, inputs={"x": x, "w": w})
    v.passed, v.message;  v.raise_for_verdict()

An op's name makes the float64 reference of that op the truth and its error budget the gate, gradients included. A function of torch tensors
is called on the CPU in float64, with autograd, and the gate is that of the operands' format and recipe.
"""

from __future__ import annotations

from accuracy_eval.verifying.verification import Seeded, Verification, seeded, verify

__all__ = ["Seeded", "Verification", "seeded", "verify"]
