// A plain kernel over an exported fixture: Y = silu(alpha * A.B[:, :N]) * (alpha * A.B[:, N:]) / s, bfloat16 operands and result.
// usage: gemm OUT.bin [exchanged|activation]: the word names what to get wrong.
#include "fixture.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

namespace f = gemm_swiglu_none_bf16_8x16x16;

static float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static float projection(std::size_t i, std::size_t j) {
    float sum = 0;
    for (std::size_t k = 0; k < f::k; k++)
        sum += from_bits(std::uint32_t(f::a[i * f::k + k]) << 16) * from_bits(std::uint32_t(f::b[k * 2 * f::n + j]) << 16);
    return sum * from_bits(f::alpha_bits);
}

int main(int argc, char **argv) {
    const std::string wrong = argc > 2 ? argv[2] : "";
    std::ofstream out(argv[1], std::ios::binary);
    for (std::size_t i = 0; i < f::m; i++)
        for (std::size_t j = 0; j < f::n; j++) {
            float gate = projection(i, j), up = projection(i, f::n + j);
            if (wrong == "exchanged") std::swap(gate, up);
            const float y = (wrong == "activation" ? gate : gate / (1 + std::exp(-gate))) * up / from_bits(f::output_scale_bits);
            std::uint32_t bits;
            std::memcpy(&bits, &y, sizeof bits);
            const std::uint32_t code = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
            out.put(char(code & 255)).put(char(code >> 8));
        }
    return out.good() ? 0 : 1;
}
