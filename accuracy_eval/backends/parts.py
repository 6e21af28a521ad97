"""The table of parts, as the backends spell it; it lives in `accuracy_eval.parts`, where the models of matrix units need it too."""

from __future__ import annotations

from accuracy_eval.parts import CPU_UNIT, PARTS, Fp8, Part, Tf32, Vendor, aliases, part_of, resolve_unit, unit_of

__all__ = ["CPU_UNIT", "PARTS", "Fp8", "Part", "Tf32", "Vendor", "aliases", "part_of", "resolve_unit", "unit_of"]
