"""Ops: what each computes, its operands, outputs, torch expression and reference. `registry.OPS` lists them."""
