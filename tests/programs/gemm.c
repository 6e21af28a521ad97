/* A plain kernel over an exported fixture: Y = (alpha * row * channel * A.B + bias) / s, fp8 (E4M3) operands, bfloat16 result.
 * usage: gemm OUT.bin [tail|bias|scales]: the word names what to leave out. */
#include "fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define F(name) gemm_bias_fp8_row_channel_8x16x16_##name

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float e4m3(uint8_t code) {
    int exponent = code >> 3 & 15, fraction = code & 7;
    float x = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return code & 128 ? -x : x;
}

static uint16_t bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

int main(int argc, char **argv) {
    const char *without = argc > 2 ? argv[2] : "";
    size_t k_end = strcmp(without, "tail") ? F(k) : F(k) - 4;
    FILE *out = fopen(argv[1], "wb");
    if (!out) return 1;
    for (size_t i = 0; i < F(m); i++)
        for (size_t j = 0; j < F(n); j++) {
            float sum = 0;
            for (size_t k = 0; k < k_end; k++) sum += e4m3(F(a)[i * F(k) + k]) * e4m3(F(b)[k * F(n) + j]);
            if (strcmp(without, "scales")) sum *= from_bits(F(a_scale)[i]) * from_bits(F(b_scale)[j]);
            sum *= from_bits(F(alpha_bits));
            if (strcmp(without, "bias")) sum += from_bits((uint32_t)F(bias)[j] << 16);
            uint16_t code = bfloat16(sum / from_bits(F(output_scale_bits)));
            uint8_t bytes[2] = {(uint8_t)code, (uint8_t)(code >> 8)};
            fwrite(bytes, 1, 2, out);
        }
    return fclose(out);
}
