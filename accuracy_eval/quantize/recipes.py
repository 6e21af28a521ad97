"""How operands are quantised: granularity × scale rule × element × limits × padding, one row a recipe.

Sources: OCP MX 1.0 (floor rule, 32-wide blocks); the NVFP4 two-level scheme (16-wide blocks, E4M3 scale, float32 global);
the 1×128 / 128×128 training recipes with float32 or power-of-two scales; W8A8 row × channel int8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from accuracy_eval.errors import UsageError, unknown
from accuracy_eval.formats import FORMATS, Format, Overflow, concrete, get_format

Encoding = Literal["ocp", "fnuz"]

TINY_AMAX = 1e-12  # keeps max / amax finite in float32 and lies under every amax that training data show
BLOCK_AMAX = 1e-4  # the floor of the 1x128 and 128x128 recipes: blocks of tiny gradients lose precision, by convention


@dataclass(frozen=True)
class Recipe:
    """One way to quantise an operand.

    block             rows × elements along the contraction axis that share a scale; 0 means the whole extent
    rule              row of SCALE_RULES: how amax becomes a scale
    element           family of the elements unless the caller names another
    gradient_element  family where the operand is an upstream gradient; "" is `element`
    floor             smallest amax (rule amax_over_max: smallest scale) the rule sees; 0 where the rule needs none
    limits            largest code value used, by format name, where it is not the format's largest
    overflow          what rounds beyond that value becomes: the floor and even rules and the unit scale let data get there
    elements          families the recipe may carry; empty is any
    hadamard          the data are rotated by the 16-point Hadamard transform × 0.25 along the contraction axis first
    scale_padding     scale rows × scale columns are padded to multiples of these in storage, with bytes 0
    weights           recipe of the second operand of a GEMM that names this one; "" is the same
    transposed        recipe of A and of the upstream gradient where a backward product contracts their rows; "" is the same
    requantised       transposed operands of backward products are quantised from the dequantised forward ones: two roundings
    """

    name: str
    block: tuple[int, int]
    rule: str
    element: str
    gradient_element: str = ""
    floor: float = 0.0
    limits: Mapping[str, float] = field(default_factory=dict)
    overflow: Overflow = "saturate"
    elements: tuple[str, ...] = ()
    hadamard: bool = False
    scale_padding: tuple[int, int] = (1, 1)
    weights: str = ""
    transposed: str = ""
    requantised: bool = False

    @property
    def granularity(self) -> str:
        """What shares a scale: "tensor", "row", or rows × elements of a block, as in "1x128"."""
        rows, columns = self.block
        return {(0, 0): "tensor", (1, 0): "row"}.get(self.block, f"{rows}x{columns}")

    def largest(self, element: Format) -> float:
        """Largest code value this recipe uses of `element`: elements saturate there, scales map amax there."""
        return self.limits.get(element.name, element.max)


E4M3, E5M2, E2M1, E2M3, INT8 = "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "fp6_e2m3", "int8"
FLOATS = (E4M3, E5M2, "fp6_e2m3", "fp6_e3m2", E2M1)


def _mx_rows() -> list[Recipe]:
    """32-wide blocks with E8M0 scales: element × rule × 1-D or 32×32. Storage pads K to 128, hence scale columns to 4."""
    rows = []
    for name, element in (("mxfp8", E4M3), ("mxfp6", E2M3), ("mxfp4", E2M1)):
        for form, block in (("", (1, 32)), ("_2d", (32, 32))):
            for rule, suffix in (("floor", ""), ("rceil", "_rceil"), ("even", "_even"), ("ceil", "_ceil")):
                rows.append(Recipe(f"{name}{form}{suffix}", block, rule, element, elements=FLOATS, scale_padding=(1, 4)))
    return rows


RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe("tensorwise", (0, 0), "max_over_amax", E4M3, floor=TINY_AMAX),
        Recipe("tensorwise_direct", (0, 0), "amax_over_max", E4M3, floor=TINY_AMAX),
        Recipe("tensorwise_pow2", (0, 0), "pow2", E4M3, floor=TINY_AMAX, elements=FLOATS),
        Recipe("hybrid", (0, 0), "max_over_amax", E4M3, gradient_element=E5M2, floor=TINY_AMAX),
        Recipe("unit", (0, 0), "unit", E4M3),
        Recipe("rowwise", (1, 0), "max_over_amax", E4M3, floor=TINY_AMAX, requantised=True),
        Recipe("rowwise_direct", (1, 0), "amax_over_max", E4M3, floor=TINY_AMAX, requantised=True),
        Recipe("rowwise_pow2", (1, 0), "pow2", E4M3, floor=TINY_AMAX, elements=FLOATS, requantised=True),
        # some inference stacks use 224 of FNUZ's 240; a scale ratio of 240/224 between two stacks is this convention
        Recipe("rowwise_max224", (1, 0), "amax_over_max", E4M3, floor=TINY_AMAX, limits={"float8_e4m3fnuz": 224.0}, requantised=True),
        Recipe("int8_rowwise", (1, 0), "amax_over_max", INT8, floor=TINY_AMAX, elements=(INT8,), requantised=True),
        Recipe("block1x128", (1, 128), "max_over_amax", E4M3, floor=BLOCK_AMAX, weights="block128x128"),
        Recipe("block1x128_both", (1, 128), "max_over_amax", E4M3, floor=BLOCK_AMAX),
        Recipe("block128x128", (128, 128), "max_over_amax", E4M3, floor=BLOCK_AMAX),
        Recipe("block1x128_ue8m0", (1, 128), "pow2", E4M3, floor=BLOCK_AMAX, elements=FLOATS, weights="block128x128_ue8m0"),
        Recipe("block128x128_ue8m0", (128, 128), "pow2", E4M3, floor=BLOCK_AMAX, elements=FLOATS),
        *_mx_rows(),
        Recipe("mxfp4_even_hadamard", (1, 32), "even", E2M1, elements=FLOATS, hadamard=True, scale_padding=(1, 4)),
        # training: 32x32 weights; in FP4 what is contracted along its rows is rotated first
        Recipe("mxfp8_training", (1, 32), "even", E4M3, elements=FLOATS, scale_padding=(1, 4), weights="mxfp8_2d_even"),
        Recipe(
            "mxfp4_training", (1, 32), "even", E2M1, elements=FLOATS, scale_padding=(1, 4), weights="mxfp4_2d_even",
            transposed="mxfp4_even_hadamard",
        ),
        # 128 x 4 is the tile of the swizzled scale storage
        Recipe("nvfp4", (1, 16), "nvfp4", E2M1, elements=(E2M1,), scale_padding=(128, 4)),
    )
}  # fmt: skip


def get_recipe(name: str | Recipe) -> Recipe:
    """The recipe of that name; unknown names raise UsageError."""
    if isinstance(name, Recipe):
        return name
    try:
        return RECIPES[name]
    except KeyError:
        raise unknown("recipe", name, RECIPES, listed="recipes") from None


def element_format(
    recipe: str | Recipe, element: str | Format | None = None, *, encoding: Encoding = "ocp", gradient: bool = False
) -> Format:
    """Concrete element format of `recipe`: the caller's `element`, else the recipe's own (that for gradients if `gradient`).

    A concrete name ("float8_e4m3fnuz") stays itself; a family ("fp8_e4m3") takes the device's `encoding`. A family the recipe
    cannot carry raises UsageError.
    """
    r = get_recipe(recipe)
    wanted = element or (gradient and r.gradient_element) or r.element
    if isinstance(wanted, Format) or wanted in FORMATS:
        fmt = get_format(wanted)
    else:
        fmt = concrete(str(wanted), encoding)
    allowed = r.elements or (*FLOATS, INT8)
    if fmt.family not in allowed:
        raise UsageError(f"recipe {r.name} cannot carry {fmt.name}; allowed families: {', '.join(allowed)}")
    return fmt
