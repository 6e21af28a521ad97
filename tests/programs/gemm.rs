// A plain kernel over an exported fixture: Y = (alpha * row * channel * A.B + bias) / s, int8 operands, int32 sums, bfloat16 result.
// usage: gemm OUT.bin [row]: the word names what to get wrong.
#[allow(dead_code)]
mod fixture;
use fixture as f;
use std::io::Write;

fn bfloat16(x: f32) -> u16 {
    let bits = x.to_bits();
    (bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let wrong = arguments.get(2).map(String::as_str).unwrap_or("");
    let mut out = std::fs::File::create(&arguments[1]).unwrap();
    for i in 0..f::M {
        for j in 0..f::N {
            let sum: i32 = (0..f::K).map(|k| f::A[i * f::K + k] as i8 as i32 * (f::B[k * f::N + j] as i8 as i32)).sum();
            let scale = f32::from_bits(f::A_SCALE[i]) * f32::from_bits(f::B_SCALE[j]);
            let bias = f32::from_bits((f::BIAS[j] as u32) << 16);
            let y = (f32::from_bits(f::ALPHA_BITS) * scale * sum as f32 + bias) / f32::from_bits(f::OUTPUT_SCALE_BITS);
            let y = if wrong == "row" && i == 5 { -y } else { y };
            out.write_all(&bfloat16(y).to_le_bytes()).unwrap();
        }
    }
}
