"""A plain kernel over an exported fixture, with the standard library alone: NVFP4 operands (packed), one UE4M3 scale for 16 elements.

usage: gemm.py FIXTURE OUT.bin [nibbles|scales]: the word names what to get wrong.
"""

import json
import struct
import sys
from pathlib import Path

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def ue4m3(code: int) -> float:
    exponent, fraction = code >> 3 & 15, code & 7
    return (8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0**-9


def elements(data: bytes, exchanged: bool) -> list[float]:
    codes = [n for byte in data for n in ((byte >> 4, byte & 15) if exchanged else (byte & 15, byte >> 4))]
    return [-E2M1[c & 7] if c & 8 else E2M1[c] for c in codes]


def float32(bits: str) -> float:
    return struct.unpack("<f", int(bits, 16).to_bytes(4, "little"))[0]


def bfloat16(x: float) -> bytes:
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    wrong = sys.argv[3] if len(sys.argv) > 3 else ""
    computes = json.loads((folder / "manifest.json").read_text())["computes"]
    m, n, k = (computes[d] for d in "mnk")
    data = {p.stem: p.read_bytes() for p in folder.glob("*.bin") if not p.stem.startswith("expected")}
    a, b = elements(data["a"], wrong == "nibbles"), elements(data["b"], False)
    blocks = -(-k // 16)
    result = b""
    for i in range(m):
        for j in range(n):
            total = 0.0
            for x in range(k):
                scale = ue4m3(data["a_scale"][i * blocks + x // 16])
                if wrong != "scales":
                    scale *= ue4m3(data["b_scale"][j * blocks + x // 16])
                total += a[i * k + x] * b[j * k + x] * scale
            result += bfloat16(total * float32(computes["alpha"]["float32"]) / float32(computes["output_scale"]["float32"]))
    out.write_bytes(result)


if __name__ == "__main__":
    main()
