"""Number formats as rows of a table: what a code (an integer bit pattern) means.

`FORMATS` is the one place to add a format. Everything else (decode tables, rounding, ordinals, limits) is derived
from the row. Names are those of ml_dtypes; `float8_ue4m3` (the unsigned E4M3 scale of NVFP4) and `tfloat32` (a compute
format: float32 storage, 10 fraction bits) have no ml_dtypes name.

Sources: IEEE 754-2019 (float64/32/16); OCP OFP8 1.0 (e4m3fn, e5m2); AMD CDNA3 ISA (fnuz); OCP MX 1.0 (e8m0, e2m1, e2m3, e3m2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from accuracy_eval.errors import UsageError, unknown

Codes = NDArray[Any]
Values = NDArray[np.float64]
Overflow = Literal["saturate", "inf", "nan"]
Specials = Literal["ieee", "fn", "fnuz", "finite", "e8m0"]

BLOCK = 1 << 16  # elements per block of a chunked conversion: temporaries stay in the L2 cache


@dataclass(frozen=True)
class Format:
    """One number format.

    kind             "float" or "int"
    bits             significant bits of a code
    exponent_bits    float: width of the exponent field (int: 0)
    fraction_bits    float: explicit fraction bits (int: 0)
    bias             float: exponent bias
    signed           whether the top bit is a sign
    specials         "ieee": all-ones exponent is Inf/NaN · "fn": only all-ones code is NaN, no Inf · "fnuz": only 0x80 is NaN,
                     no Inf, no -0 · "finite": every code is a number · "e8m0": power of two, 0xFF is NaN, no zero
    family           name used in case ids; encodings of one family hold the same data on different devices
    overflow         what `encode` does beyond the largest finite value when the caller names no policy
    scale_only       a format of scale factors, never of operands
    """

    name: str
    kind: Literal["float", "int"]
    bits: int
    exponent_bits: int = 0
    fraction_bits: int = 0
    bias: int = 0
    signed: bool = True
    specials: Specials = "finite"
    family: str = ""
    overflow: Overflow = "saturate"
    scale_only: bool = False

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """dtype of the stored codes: the unsigned integer of at least `bits` bits."""
        for width in (8, 16, 32, 64):
            if self.bits <= width:
                return np.dtype(f"<u{width // 8}")
        raise AssertionError(self.name)

    @property
    def has_inf(self) -> bool:
        return self.specials == "ieee"

    @property
    def has_nan(self) -> bool:
        return self.kind == "float" and self.specials != "finite"

    @property
    def has_zero(self) -> bool:
        return self.specials != "e8m0"

    @property
    def has_negative_zero(self) -> bool:
        return self.kind == "float" and self.signed and self.specials != "fnuz"

    @property
    def sign_mask(self) -> int:
        return 1 << (self.magnitude_bits) if self.kind == "float" else 0

    @property
    def magnitude_bits(self) -> int:
        """Bits below the sign: exponent and fraction."""
        return self.exponent_bits + self.fraction_bits

    @property
    def magnitude_mask(self) -> int:
        return (1 << self.magnitude_bits) - 1

    @cached_property
    def max_code(self) -> int:
        """Code of the largest finite value."""
        top = self.magnitude_mask
        if self.kind == "int":
            return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1
        if self.specials == "ieee":
            return (((1 << self.exponent_bits) - 1) << self.fraction_bits) - 1
        return top - 1 if self.specials in ("fn", "e8m0") else top

    @property
    def nan_code(self) -> int:
        """The code written for NaN: quiet, positive, lowest payload (fnuz: the only one)."""
        if not self.has_nan:
            raise UsageError(f"{self.name} has no NaN")
        if self.specials == "ieee":
            return self.inf_code | (1 << (self.fraction_bits - 1))
        return self.sign_mask if self.specials == "fnuz" else self.magnitude_mask

    @property
    def inf_code(self) -> int:
        """The code of +Inf."""
        if not self.has_inf:
            raise UsageError(f"{self.name} has no Inf")
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal value."""
        return -self.bias if self.specials == "e8m0" else 1 - self.bias

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        return float(decode(np.array([self.max_code], self.storage), self)[0])

    @property
    def smallest_normal(self) -> float:
        return 1.0 if self.kind == "int" else 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value."""
        return 1.0 if self.kind == "int" else 2.0 ** (self.emin - self.fraction_bits)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next value."""
        return 1.0 if self.kind == "int" else 2.0**-self.fraction_bits

    @property
    def code_digits(self) -> int:
        """Hex digits that print a code."""
        return self.storage.itemsize * 2


def _float(name: str, exponent_bits: int, fraction_bits: int, bias: int, specials: Specials, **more: Any) -> Format:
    signed = more.get("signed", True)
    bits = more.pop("bits", int(signed) + exponent_bits + fraction_bits)
    more.setdefault("family", name)
    return Format(name, "float", bits, exponent_bits, fraction_bits, bias, specials=specials, **more)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        _float("float64", 11, 52, 1023, "ieee", overflow="inf"),
        _float("float32", 8, 23, 127, "ieee", overflow="inf"),
        # a code is the upper 19 bits of the float32 code
        _float("tfloat32", 8, 10, 127, "ieee", overflow="inf", bits=19),
        _float("float16", 5, 10, 15, "ieee", overflow="inf"),
        _float("bfloat16", 8, 7, 127, "ieee", overflow="inf"),
        _float("float8_e4m3fn", 4, 3, 7, "fn", family="fp8_e4m3"),
        _float("float8_e4m3fnuz", 4, 3, 8, "fnuz", family="fp8_e4m3"),
        _float("float8_e5m2", 5, 2, 15, "ieee", family="fp8_e5m2", overflow="inf"),
        _float("float8_e5m2fnuz", 5, 2, 16, "fnuz", family="fp8_e5m2"),
        _float("float8_e8m0fnu", 8, 0, 127, "e8m0", family="e8m0", signed=False, scale_only=True),
        _float("float8_ue4m3", 4, 3, 7, "fn", family="ue4m3", signed=False, bits=8, scale_only=True),
        _float("float6_e2m3fn", 2, 3, 1, "finite", family="fp6_e2m3"),
        _float("float6_e3m2fn", 3, 2, 3, "finite", family="fp6_e3m2"),
        _float("float4_e2m1fn", 2, 1, 1, "finite", family="fp4_e2m1"),
        Format("int8", "int", 8, family="int8"),
        Format("int32", "int", 32, family="int32"),
        Format("uint8", "int", 8, signed=False, family="uint8"),
    )
}
FAMILIES: dict[str, tuple[str, ...]] = {}
for _f in FORMATS.values():
    FAMILIES[_f.family] = (*FAMILIES.get(_f.family, ()), _f.name)

ALIASES = {
    "fp64": "float64", "fp32": "float32", "tf32": "tfloat32", "fp16": "float16", "half": "float16", "bf16": "bfloat16",
    "e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2", "e2m1": "fp4_e2m1", "fp4": "fp4_e2m1", "float8_e8m0": "float8_e8m0fnu",
    "float8_e4m3": "float8_e4m3fn",
}  # fmt: skip


def get_format(name: str | Format) -> Format:
    """The format of that name. A family stands for its OCP (first) encoding. Unknown names raise UsageError."""
    if isinstance(name, Format):
        return name
    key = ALIASES.get(name, name)
    if key in FAMILIES:
        key = FAMILIES[key][0]
    try:
        return FORMATS[key]
    except KeyError:
        raise unknown("format", name, [*FAMILIES, *FORMATS, *ALIASES], listed="formats") from None


def get_family(name: str) -> str:
    """The family of a format, family or alias name, as case ids spell it."""
    key = ALIASES.get(name, name)
    return key if key in FAMILIES else get_format(key).family


def concrete(family: str, encoding: Literal["ocp", "fnuz"] = "ocp") -> Format:
    """The family's format under a device's fp8 encoding; families with one format ignore the encoding."""
    names = FAMILIES.get(get_family(family), ())
    wanted = [n for n in names if n.endswith("fnuz") == (encoding == "fnuz")]
    return FORMATS[(wanted or list(names))[0]]


def decode(codes: Codes, fmt: str | Format) -> Values:
    """Values of `codes` as float64, same shape. NaN codes give NaN; -0 gives -0.0.

    int32 and every float format are exact in float64. float8_ue4m3 ignores the sign bit, as the hardware does.
    """
    f = get_format(fmt)
    c = np.asarray(codes)
    if c.dtype.kind not in "iub":
        raise UsageError(f"codes of {f.name} must be integers, found dtype {c.dtype}")
    if f.name == "float64":
        wide: Values = np.ascontiguousarray(c).view(np.float64).reshape(c.shape)
        return wide
    with np.errstate(invalid="ignore"):  # widening a signalling NaN raises the flag; the value is NaN all the same
        if f.name == "float32":
            return np.ascontiguousarray(c).view(np.float32).reshape(c.shape).astype(np.float64)
        if f.name == "tfloat32":
            return (c.astype(np.uint32) << np.uint32(13)).view(np.float32).astype(np.float64)
        if f.name == "bfloat16":
            return (c.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        if f.name == "float16":
            return np.ascontiguousarray(c).view(np.float16).reshape(c.shape).astype(np.float64)
    if f.kind == "int":
        signed = np.dtype(f"i{f.storage.itemsize}") if f.signed else f.storage
        return np.ascontiguousarray(c).view(signed).reshape(c.shape).astype(np.float64)
    table: Values = decode_table(f.name)[c & ((1 << f.bits) - 1)]
    return table


@cache
def decode_table(name: str) -> Values:
    """Values of all 2^bits codes of a format of at most 16 bits, in code order. Read-only."""
    f = get_format(name)
    if f.bits > 16 or f.kind == "int":
        raise UsageError(f"{f.name} has no decode table (only float formats of at most 16 bits do)")
    codes = np.arange(1 << f.bits)
    values = _decode_fields(codes, f)
    values.flags.writeable = False
    return values


def _decode_fields(codes: Codes, f: Format) -> Values:
    mag = (codes & f.magnitude_mask).astype(np.int64)
    exponent, fraction = mag >> f.fraction_bits, mag & ((1 << f.fraction_bits) - 1)
    if f.specials == "e8m0":
        values = np.ldexp(1.0, exponent - f.bias)
    else:
        significand = np.where(exponent > 0, fraction + (1 << f.fraction_bits), fraction).astype(np.float64)
        values = np.ldexp(significand, np.maximum(exponent, 1) - f.bias - f.fraction_bits)
    if f.specials == "ieee":
        values = np.where(mag == f.inf_code, np.inf, np.where(mag > f.inf_code, np.nan, values))
    elif f.specials in ("fn", "e8m0"):
        values = np.where(mag == f.magnitude_mask, np.nan, values)
    if f.signed:
        negative = (codes & f.sign_mask) != 0
        values = np.where(negative, -values, values)
        if f.specials == "fnuz":
            values = np.where(codes == f.sign_mask, np.nan, values)
    return np.asarray(values, np.float64)


def encode(values: Any, fmt: str | Format, *, overflow: Overflow | None = None) -> Codes:
    """Codes of `values` (float64) in `fmt`, same shape: one round-to-nearest-even from float64.

    overflow  what a finite value beyond the largest finite one (after rounding with an unbounded exponent) and ±Inf become:
              "saturate" ±max · "inf" ±Inf · "nan" NaN. None takes the format's own. Infinities stay infinite in formats
              that have them unless the policy is "nan" or "saturate".
    NaN gives the canonical quiet NaN with its sign dropped. Unsigned scale formats: negative values give NaN (e8m0: zero and
    values under 2^-127 give 0x00 under "saturate", else NaN). Integers: rounded to even, saturated; NaN raises UsageError.
    Ties to even: IEEE 754-2019, 4.3.1; saturation: OCP OFP8 1.0, 5.2.
    """
    f = get_format(fmt)
    x = np.asarray(values, np.float64)
    policy = overflow or f.overflow
    if policy == "inf" and f.kind == "float" and not f.has_inf:
        raise UsageError(f"overflow policy 'inf': {f.name} has no Inf; allowed: saturate, nan")
    if f.name == "float64":
        out = np.ascontiguousarray(x).view(np.uint64).reshape(x.shape).copy()
        if policy != "inf":  # nothing but an infinity is beyond the range
            out[np.isinf(x)] -= np.uint64(policy == "saturate")
            out[np.isinf(x) & (policy == "nan")] = f.nan_code
        out[np.isnan(x)] = f.nan_code
        return out
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty(flat.shape, f.storage)
    convert = _encode_int if f.kind == "int" else _encode_float if f.signed else _encode_any
    for i in range(0, flat.size, BLOCK):
        result[i : i + BLOCK] = convert(flat[i : i + BLOCK], f, policy)
    return result.reshape(x.shape)


def _encode_int(x: Values, f: Format, policy: Overflow) -> Codes:
    if np.isnan(x).any():
        raise UsageError(f"NaN has no code in {f.name}")
    low = -f.max_code - 1 if f.signed else 0
    return np.clip(np.rint(x), low, f.max_code).astype(np.int64).astype(f.storage)


def _encode_float(x: Values, f: Format, policy: Overflow) -> Codes:
    """Normal results by integers alone: float64's own bits, rounded where the format's fraction ends. All others by `_encode_any`."""
    drop = np.uint64(52 - f.fraction_bits)
    bits = x.view(np.uint64)
    magnitude = bits & np.uint64(2**63 - 1)
    least, most = np.array([2.0**f.emin, f.max]).view(np.uint64)
    half = np.uint64(1) << (drop - np.uint64(1))
    rounded = (magnitude + (half - np.uint64(1)) + ((magnitude >> drop) & np.uint64(1))) >> drop
    code = rounded - np.uint64((f.emin - 1 + 1023) << f.fraction_bits)
    code |= (bits >> np.uint64(63)) << np.uint64(f.sign_mask.bit_length() - 1)
    result = code.astype(f.storage)
    rest = np.flatnonzero((magnitude - least) > (most - least))  # unsigned: what is below wraps around
    result[rest] = _encode_any(x[rest], f, policy)
    return result


def _encode_any(x: Values, f: Format, policy: Overflow) -> Codes:
    bits = x.view(np.uint64)
    negative = (bits >> np.uint64(63)) != 0
    magnitude = np.abs(x)
    nan = np.isnan(x)
    inf = np.isinf(x)
    finite = np.where(nan | inf, 0.0, magnitude)
    e = np.where(finite == 0, f.emin, np.maximum(np.frexp(finite)[1].astype(np.int64) - 1, f.emin))
    # finite / 2^(e - p) is exact: a scaling by a power of two that cannot underflow since e >= emin
    q = np.rint(np.ldexp(finite, f.fraction_bits - e)).astype(np.int64)
    # a carry out of the significand increments the exponent field by itself
    field = e - f.emin + (0 if f.specials == "e8m0" else 1)
    mag = (field << f.fraction_bits) + q - (1 << f.fraction_bits)
    over = (mag > f.max_code) | inf
    mag = np.where(over, _overflow_magnitude(f, policy), mag)
    if f.specials == "e8m0":
        # nothing under 2^-127 and no zero: below the midpoint of an imaginary 2^-128 there is only the smallest code
        under = finite < 2.0**f.emin
        mag = np.where(under & ~over & ~nan, 0 if policy == "saturate" else f.nan_code, mag)
    code = mag
    if f.signed:
        code = mag | np.where(negative, f.sign_mask, 0)
        if f.specials == "fnuz":
            code = np.where(mag == 0, 0, code)  # no -0: that code is the NaN
    else:
        code = np.where(negative & (magnitude > 0), f.nan_code, code)
    if f.has_nan:
        code = np.where(nan | (over & (policy == "nan")), f.nan_code, code)
    elif nan.any():
        raise UsageError(f"NaN has no code in {f.name}")
    return code.astype(f.storage)


def _overflow_magnitude(f: Format, policy: Overflow) -> int:
    if policy == "inf":
        return f.inf_code
    if policy == "nan":
        return f.nan_code & f.magnitude_mask
    return f.max_code


def round_to(values: Any, fmt: str | Format) -> Values:
    """`values` rounded once to `fmt`, as float64 of the same shape: what storing them in that format leaves."""
    return decode(encode(values, fmt), fmt)


def arithmetic_format(fmt: str | Format) -> Format:
    """The format in which frameworks compute on operands of `fmt`: float64 for float64, float32 for all others."""
    return FORMATS["float64" if get_format(fmt).name == "float64" else "float32"]


def ordinals(codes: Codes, fmt: str | Format) -> NDArray[np.int64]:
    """Signed position of each code on the format's number line, int64: neighbours differ by 1, -0 = +0 = 0.

    The ulp distance of two codes is the difference of their ordinals. NaN codes have no position; callers mask them.
    float64 spans ±(2^63 - 2^52), so a difference of two ordinals of opposite sign needs uint64: see `ordinal_distance`.
    """
    f = get_format(fmt)
    c = np.asarray(codes)
    if f.kind == "int":
        return np.asarray(decode(c, f), np.int64)
    if not f.signed:
        return np.asarray(c & f.magnitude_mask, np.int64)
    mag = (c & f.storage.type(f.magnitude_mask)).astype(np.int64)
    return np.asarray(np.where((c & f.storage.type(f.sign_mask)) != 0, -mag, mag), np.int64)


def ordinal_distance(a: Codes, b: Codes, fmt: str | Format) -> NDArray[np.uint64]:
    """|ordinal(a) - ordinal(b)| as uint64; exact for every format. NaN codes must be masked by the caller."""
    x, y = ordinals(a, fmt), ordinals(b, fmt)
    with np.errstate(over="ignore"):
        d: NDArray[np.uint64] = np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)
    return d


def is_nan(codes: Codes, fmt: str | Format) -> NDArray[np.bool_]:
    """Which codes are NaN."""
    f = get_format(fmt)
    c = np.asarray(codes)
    if not f.has_nan:
        return np.zeros(c.shape, np.bool_)
    if f.specials == "fnuz":
        return np.asarray(c == f.sign_mask)
    mag = c & f.storage.type(f.magnitude_mask)
    return np.asarray(mag > f.inf_code) if f.has_inf else np.asarray(mag == f.magnitude_mask)


def differing(a: Codes, b: Codes, fmt: str | Format) -> NDArray[np.bool_]:
    """Which codes are not the same; NaN equals NaN whatever its bits."""
    return np.asarray((a != b) & ~(is_nan(a, fmt) & is_nan(b, fmt)))


def ulp(values: Any, fmt: str | Format) -> Values:
    """Spacing of `fmt` at |values|: 2^(max(floor(log2|x|), emin) - fraction_bits). Zero has the subnormal spacing; ±Inf and
    NaN that of the largest finite value and NaN."""
    f = get_format(fmt)
    x = np.abs(np.asarray(values, np.float64))
    if f.kind == "int":
        return np.where(np.isnan(x), np.nan, 1.0)
    safe = np.where(np.isfinite(x), x, f.max)
    e = np.where(safe == 0, f.emin, np.maximum(np.frexp(safe)[1].astype(np.int64) - 1, f.emin))
    return np.where(np.isnan(x), np.nan, np.ldexp(1.0, e - f.fraction_bits))
