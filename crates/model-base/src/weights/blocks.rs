//! The block types of GGUF expanded to float32 (layouts: ggml-org/ggml, `src/ggml-common.h`).

use half::f16;

use super::coding::Coding;

/// Values of a block of the simple types.
pub(crate) const GROUP: usize = 32;

/// Expands whole blocks. `bytes` and `out` have been checked to hold the same number of blocks.
pub(crate) fn expand(coding: Coding, bytes: &[u8], out: &mut [f32]) {
    match coding {
        Coding::Q4_0 => each::<18, 32>(bytes, out, q4_0),
        Coding::Q4_1 => each::<20, 32>(bytes, out, q4_1),
        Coding::Q5_0 => each::<22, 32>(bytes, out, q5_0),
        Coding::Q5_1 => each::<24, 32>(bytes, out, q5_1),
        Coding::Q8_0 => each::<34, 32>(bytes, out, q8_0),
        Coding::Q4K => each::<144, 256>(bytes, out, q4_k),
        Coding::Q6K => each::<210, 256>(bytes, out, q6_k),
        _ => {}
    }
}

/// Blocks in MLX's affine layout: value = scale · word + bias, 32 values to a group.
pub(crate) struct Packed {
    pub(crate) words: Vec<u32>,
    /// One per block.
    pub(crate) scales: Vec<f32>,
    /// One per block.
    pub(crate) biases: Vec<f32>,
    pub(crate) bits: usize,
}

/// Repacks the block types that the affine layout can hold without loss; `None` for the others.
pub(crate) fn pack(coding: Coding, bytes: &[u8]) -> Option<Packed> {
    let (size, bits) = match coding {
        Coding::Q4_0 => (18, 4),
        Coding::Q4_1 => (20, 4),
        Coding::Q8_0 => (34, 8),
        _ => return None,
    };
    let count = bytes.len() / size;
    let (scales, biases) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut packed = Packed { words: Vec::with_capacity(count * bits), scales, biases, bits };
    for block in bytes.chunks_exact(size) {
        let scale = half(block, 0);
        packed.scales.push(scale);
        packed.biases.push(match coding {
            Coding::Q4_0 => -8.0 * scale,
            Coding::Q4_1 => half(block, 2),
            _ => -128.0 * scale,
        });
        match bits {
            4 => packed.words.extend(nibble_words(&block[size - 16..])),
            // Signed bytes become unsigned ones: adding 128 flips the top bit.
            _ => packed
                .words
                .extend(block[2..].as_chunks().0.iter().map(|&four| u32::from_le_bytes(four) ^ 0x8080_8080)),
        }
    }
    Some(packed)
}

/// 16 bytes of nibbles, low ones first, as four words of eight values in order.
fn nibble_words(bytes: &[u8]) -> [u32; 4] {
    let low = |run: &[u8]| run.iter().rev().fold(0, |word, &byte| word << 4 | u32::from(byte & 15));
    let high = |run: &[u8]| run.iter().rev().fold(0, |word, &byte| word << 4 | u32::from(byte >> 4));
    let (first, second) = bytes.split_at(8);
    [low(first), low(second), high(first), high(second)]
}

fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], one: fn(&[u8; B], &mut [f32; N])) {
    let (blocks, values) = (bytes.as_chunks::<B>().0, out.as_chunks_mut::<N>().0);
    for (block, values) in blocks.iter().zip(values) {
        one(block, values);
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Scale; then 16 bytes whose low nibbles are values 0–15 and whose high nibbles are values 16–31.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        out[i] = (f32::from(byte & 15) - 8.0) * scale;
        out[i + 16] = (f32::from(byte >> 4) - 8.0) * scale;
    }
}

/// Scale and minimum, four bytes in all; then nibbles as in `q4_0`.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, min) = (half(block, 0), half(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        out[i] = f32::from(byte & 15) * scale + min;
        out[i + 16] = f32::from(byte >> 4) * scale + min;
    }
}

/// Scale, 32 fifth bits, nibbles.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    fives(&block[2..], out, |q| (q - 16.0) * scale);
}

/// Scale, minimum, 32 fifth bits, nibbles.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, min) = (half(block, 0), half(block, 2));
    fives(&block[4..], out, |q| q * scale + min);
}

fn fives(rest: &[u8], out: &mut [f32; 32], value: impl Fn(f32) -> f32) {
    let high = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
    let fifth = |i: usize| ((high >> i) & 1) as u8 * 16;
    for (i, &byte) in rest[4..20].iter().enumerate() {
        out[i] = value(f32::from((byte & 15) | fifth(i)));
        out[i + 16] = value(f32::from((byte >> 4) | fifth(i + 16)));
    }
}

/// Scale; then 32 signed bytes.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (value, &byte) in out.iter_mut().zip(&block[2..]) {
        *value = f32::from(byte as i8) * scale;
    }
}

/// Super-scale and super-minimum, eight 6-bit scales and minima in 12 bytes, then four runs of 32
/// bytes: low nibbles are one group of 32 values, high nibbles the next.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, min) = (half(block, 0), half(block, 2));
    let packed = &block[4..16];
    let six = |j: usize| match j {
        0..4 => (packed[j] & 63, packed[j + 4] & 63),
        _ => {
            let (low, high) = (packed[j + 4], (packed[j - 4] >> 6, packed[j] >> 6));
            ((low & 15) | (high.0 << 4), (low >> 4) | (high.1 << 4))
        }
    };
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (s, m) = six(group);
        let (s, m) = (scale * f32::from(s), min * f32::from(m));
        let run = &block[16 + group / 2 * 32..][..32];
        for (value, &byte) in values.iter_mut().zip(run) {
            let nibble = if group % 2 == 0 { byte & 15 } else { byte >> 4 };
            *value = s * f32::from(nibble) - m;
        }
    }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, super-scale. Each half of
/// 128 values interleaves four groups of 32 over 64 low and 32 high bytes.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half(block, 208);
    for (n, values) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let low = &block[n * 64..][..64];
        let high = &block[128 + n * 32..][..32];
        let scales = &block[192 + n * 8..][..8];
        for (i, value) in values.iter_mut().enumerate() {
            let (group, column) = (i / 32, i % 32);
            let nibbles = low[column + group % 2 * 32] >> (group / 2 * 4) & 15;
            let pair = (high[column] >> (group * 2)) & 3;
            let quant = f32::from((nibbles | (pair << 4)) as i8 - 32);
            *value = scale * f32::from(scales[i / 16] as i8) * quant;
        }
    }
}
