//! Layers against plain loops on the host.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use foretoken_model_base::{
    Config, LoadOptions, Weights,
    nn::{Activation, ConvLayout, RmsNorm, Rope, ShortConv, gated_delta, scaled, soft_cap},
};
use mlx_rs::{Array, Device, Dtype};
use proptest::prelude::*;

/// Largest difference of two float32 computations of the same few sums.
const CLOSE: f32 = 1e-5;
/// The same where positions are multiplied by frequencies: float32 angles have fewer digits.
const ANGLES: f32 = 1e-4;

fn on_cpu() {
    Device::try_default().expect("MLX has a default device");
    Device::set_default(&Device::cpu());
}

fn host(array: &Array) -> Vec<f32> {
    array.as_dtype(Dtype::Float32).unwrap().contiguous().unwrap().to_vec_exact().unwrap()
}

fn off(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

/// Numbers in [−1, 1) that a seed determines.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn array(values: &[f32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape)
}

/// Rotates pairs (i, i + half) of one row by position / wavelength.
fn turned(row: &[f32], position: f64, half: usize, wavelengths: &[f64]) -> Vec<f32> {
    let mut out = row.to_vec();
    for (i, wavelength) in wavelengths.iter().enumerate() {
        let (sin, cos) = (position / wavelength).sin_cos();
        let (a, b) = (f64::from(row[i]), f64::from(row[i + half]));
        out[i] = (a * cos - b * sin) as f32;
        out[i + half] = (a * sin + b * cos) as f32;
    }
    out
}

/// Rows [1,1,L,size] through a rotation and through the host's.
fn check_rope(rope: &Rope, size: usize, offset: usize, half: usize, wavelengths: &[f64]) {
    const ROWS: usize = 5;
    let values = numbers(size as u64, ROWS * size);
    let x = array(&values, &[1, 1, ROWS as i32, size as i32]);
    let got = host(&rope.forward(&x, offset).unwrap());
    let want: Vec<f32> = values
        .chunks(size)
        .enumerate()
        .flat_map(|(i, row)| turned(row, (offset + i) as f64, half, wavelengths))
        .collect();
    let off = off(&got, &want);
    println!("head size {size} at {offset}: largest difference {off:.1e}");
    assert!(off <= ANGLES, "{off}");
}

fn section(text: &str) -> Config {
    Config::parse(text).unwrap()
}

#[test]
fn a_part_of_a_head_turns_in_itself() {
    on_cpu();
    let wavelengths: Vec<f64> = (0..4).map(|i| 1e4f64.powf(2.0 * f64::from(i) / 8.0)).collect();
    let rope = Rope::partial(&section("{}"), 16, 0.5, 1e4).unwrap();
    for offset in [0, 1, 100] {
        // Entries 8 to 15 stay as they are.
        check_rope(&rope, 16, offset, 4, &wavelengths);
    }
}

#[test]
fn proportional_rotation_pairs_over_the_whole_head_and_turns_its_beginning() {
    on_cpu();
    let text = r#"{"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0}"#;
    for (rope, factor) in [
        (Rope::from_scaling(&section(text), 32, 1e6).unwrap(), 2.0),
        (Rope::proportional(32, 8, 1e6, 1.0), 1.0),
    ] {
        let wavelengths: Vec<f64> = (0..4).map(|i| factor * 1e6f64.powf(2.0 * f64::from(i) / 32.0)).collect();
        for offset in [0, 1, 100] {
            check_rope(&rope, 32, offset, 16, &wavelengths);
        }
    }
}

#[test]
fn linear_and_mixed_sections_turn_as_they_say() {
    on_cpu();
    let plain: Vec<f64> = (0..8).map(|i| 1e4f64.powf(2.0 * f64::from(i) / 16.0)).collect();
    let stretched: Vec<f64> = plain.iter().map(|w| 8.0 * w).collect();
    let linear = Rope::from_scaling(&section(r#"{"type": "linear", "factor": 8}"#), 16, 1e4).unwrap();
    check_rope(&linear, 16, 50, 8, &stretched);
    let sections = r#"{"rope_type": "mrope", "mrope_section": [3, 3, 2]}"#;
    check_rope(&Rope::from_scaling(&section(sections), 16, 1e4).unwrap(), 16, 50, 8, &plain);
}

#[test]
fn shares_that_do_not_fit_are_refused() {
    for (size, share) in [(16, 0.0), (16, -0.5), (16, 1.5), (16, 0.2), (6, 0.5)] {
        let Err(error) = Rope::partial(&section("{}"), size, share, 1e4) else {
            panic!("{share} of {size}");
        };
        assert!(error.to_string().contains("partial_rotary_factor"), "{error}");
    }
}

#[test]
fn soft_caps_bound_and_keep_the_order() {
    on_cpu();
    let values = [-1e4f32, -31.0, -0.5, 0.0, 0.25, 30.0, 45.0, 1e4];
    let got = host(&soft_cap(&array(&values, &[8]), 30.0).unwrap());
    let want: Vec<f32> = values.iter().map(|v| 30.0 * (v / 30.0).tanh()).collect();
    assert!(off(&got, &want) <= CLOSE, "{got:?}");
    assert!(got.iter().all(|v| v.abs() <= 30.0) && got.windows(2).all(|w| w[0] <= w[1]));
}

#[test]
fn activations_follow_their_formulas() {
    on_cpu();
    let values = numbers(3, 64).iter().map(|v| 6.0 * v).collect::<Vec<_>>();
    let x = array(&values, &[64]);
    let gelu =
        |v: f64| 0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh());
    let silu = |v: f64| v / (1.0 + (-v).exp());
    for (activation, formula) in
        [(Activation::GeluTanh, &gelu as &dyn Fn(f64) -> f64), (Activation::Silu, &silu)]
    {
        let want: Vec<f32> = values.iter().map(|&v| formula(f64::from(v)) as f32).collect();
        assert!(off(&host(&activation.of(&x).unwrap()), &want) <= CLOSE, "{activation:?}");
    }
}

#[test]
fn element_wise_functions_keep_the_type() {
    on_cpu();
    for dtype in [Dtype::Bfloat16, Dtype::Float16, Dtype::Float32] {
        let x = array(&numbers(1, 8), &[8]).as_dtype(dtype).unwrap();
        for y in [
            soft_cap(&x, 30.0),
            scaled(&x, 5.5),
            Activation::GeluTanh.of(&x),
            Activation::Silu.of(&x),
            RmsNorm::unscaled(1e-6).forward(&x.reshape(&[1, 8]).unwrap()),
        ] {
            assert_eq!(y.unwrap().dtype(), dtype);
        }
    }
}

#[test]
fn shifted_norms_add_one_once() {
    on_cpu();
    let stored = numbers(9, 8);
    let whole: Vec<f32> = stored.iter().map(|w| 1.0 + w).collect();
    let tensors = [("a.weight", &stored), ("b.weight", &whole)];
    let tensors = tensors.map(|(name, values)| (name.to_owned(), array(values, &[8])));
    let weights = Weights::from_arrays(tensors, LoadOptions::cpu());
    let x = array(&numbers(4, 16), &[2, 8]);
    let shifted = RmsNorm::load_shifted(&weights.at("a"), 8, 1e-6).unwrap().forward(&x).unwrap();
    let plain = RmsNorm::load(&weights.at("b"), 8, 1e-6).unwrap().forward(&x).unwrap();
    assert!(off(&host(&shifted), &host(&plain)) <= CLOSE);
}

const CHANNELS: usize = 6;
const KERNEL: usize = 4;

/// Kernels as both kinds of checkpoint store them.
fn convs() -> [(ShortConv, ConvLayout); 2] {
    let taps = numbers(12, CHANNELS * KERNEL);
    [(ConvLayout::Published, [CHANNELS, 1, KERNEL]), (ConvLayout::Converted, [CHANNELS, KERNEL, 1])].map(
        |(layout, shape)| {
            let weight = array(&taps, &shape.map(|n| n as i32));
            let weights = Weights::from_arrays([("conv1d.weight".to_owned(), weight)], LoadOptions::cpu());
            let at = weights.at("conv1d");
            assert_eq!(ConvLayout::of(&at, CHANNELS, KERNEL).unwrap(), layout);
            (ShortConv::load(&at, CHANNELS, KERNEL, layout).unwrap(), layout)
        },
    )
}

#[test]
fn short_convolutions_look_back_only() {
    on_cpu();
    let taps = numbers(12, CHANNELS * KERNEL);
    let (before, x) = (numbers(13, (KERNEL - 1) * CHANNELS), numbers(14, 5 * CHANNELS));
    let all: Vec<f32> = before.iter().chain(&x).copied().collect();
    let want: Vec<f32> = (0..5)
        .flat_map(|t| (0..CHANNELS).map(move |c| (t, c)))
        .map(|(t, c)| (0..KERNEL).map(|j| taps[c * KERNEL + j] * all[(t + j) * CHANNELS + c]).sum())
        .collect();
    for (conv, layout) in convs() {
        let before = array(&before, &[1, KERNEL as i32 - 1, CHANNELS as i32]);
        let (y, seen) = conv.forward(&before, &array(&x, &[1, 5, CHANNELS as i32])).unwrap();
        assert!(off(&host(&y), &want) <= CLOSE, "{layout:?}");
        assert_eq!(host(&seen), all);
        assert_eq!(conv.silence().unwrap().shape(), [1, KERNEL as i32 - 1, CHANNELS as i32]);
    }
}

/// The numbers of a block of the delta rule.
struct Block {
    length: usize,
    key_heads: usize,
    value_heads: usize,
    key_size: usize,
    value_size: usize,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    decay: Vec<f32>,
    rate: Vec<f32>,
    state: Vec<f32>,
}

impl Block {
    fn new(seed: u64, length: usize, group: usize) -> Self {
        let (key_heads, key_size, value_size) = (2, 5, 3);
        let value_heads = key_heads * group;
        let unit = |seed, count| numbers(seed, count).iter().map(|v| 0.5 + 0.5 * v).collect();
        Self {
            length,
            key_heads,
            value_heads,
            key_size,
            value_size,
            queries: numbers(seed, length * key_heads * key_size),
            keys: numbers(seed + 1, length * key_heads * key_size),
            values: numbers(seed + 2, length * value_heads * value_size),
            decay: unit(seed + 3, length * value_heads),
            rate: unit(seed + 4, length * value_heads),
            state: numbers(seed + 5, value_heads * value_size * key_size),
        }
    }

    fn inputs(&self) -> gated_delta::Inputs {
        let shape = |heads: usize, size: usize| [1, self.length as i32, heads as i32, size as i32];
        let rates = [1, self.length as i32, self.value_heads as i32];
        gated_delta::Inputs {
            queries: array(&self.queries, &shape(self.key_heads, self.key_size)),
            keys: array(&self.keys, &shape(self.key_heads, self.key_size)),
            values: array(&self.values, &shape(self.value_heads, self.value_size)),
            decay: array(&self.decay, &rates),
            rate: array(&self.rate, &rates),
        }
    }

    fn start(&self) -> Array {
        let shape = [1, self.value_heads as i32, self.value_size as i32, self.key_size as i32];
        array(&self.state, &shape)
    }

    /// Outputs, and the state after each token.
    fn naive(&self) -> (Vec<f32>, Vec<Vec<f32>>) {
        let (dk, dv, group) = (self.key_size, self.value_size, self.value_heads / self.key_heads);
        let mut state: Vec<f64> = self.state.iter().map(|&v| f64::from(v)).collect();
        let (mut outputs, mut states) = (Vec::new(), Vec::new());
        for t in 0..self.length {
            for h in 0..self.value_heads {
                let key = &self.keys[(t * self.key_heads + h / group) * dk..][..dk];
                let query = &self.queries[(t * self.key_heads + h / group) * dk..][..dk];
                let value = &self.values[(t * self.value_heads + h) * dv..][..dv];
                let decay = f64::from(self.decay[t * self.value_heads + h]);
                let rate = f64::from(self.rate[t * self.value_heads + h]);
                for (i, row) in state[h * dv * dk..][..dv * dk].chunks_mut(dk).enumerate() {
                    row.iter_mut().for_each(|s| *s *= decay);
                    let recalled: f64 = row.iter().zip(key).map(|(s, &k)| s * f64::from(k)).sum();
                    let correction = (f64::from(value[i]) - recalled) * rate;
                    row.iter_mut().zip(key).for_each(|(s, &k)| *s += correction * f64::from(k));
                    outputs.push(row.iter().zip(query).map(|(s, &q)| s * f64::from(q)).sum::<f64>() as f32);
                }
            }
            states.push(state.iter().map(|&s| s as f32).collect());
        }
        (outputs, states)
    }
}

#[test]
fn the_delta_rule_equals_a_loop_over_tokens() {
    on_cpu();
    for (seed, length, group) in [(1, 1, 1), (2, 7, 1), (3, 9, 2), (4, 20, 3)] {
        let block = Block::new(seed, length, group);
        let (want, states) = block.naive();
        let mut kept = Vec::new();
        let keep = |folded: usize, state: &Array| kept.push((folded, state.clone()));
        let (outputs, last) = gated_delta::run(&block.inputs(), &block.start(), keep).unwrap();
        assert_eq!(outputs.shape(), [1, length as i32, block.value_heads as i32, block.value_size as i32]);
        let largest = off(&host(&outputs), &want);
        println!("{length} tokens, {group} value heads a key head: largest difference {largest:.1e}");
        assert!(largest <= CLOSE, "{largest}");
        assert_eq!(
            kept.iter().map(|(folded, _)| *folded).collect::<Vec<_>>(),
            (1..=length).collect::<Vec<_>>()
        );
        for ((_, state), want) in kept.iter().zip(&states) {
            assert!(off(&host(state), want) <= CLOSE);
        }
        assert_eq!(host(&last), host(&kept.last().unwrap().1));
    }
}

#[test]
fn a_block_without_tokens_is_refused() {
    on_cpu();
    let block = Block::new(1, 1, 1);
    let mut inputs = block.inputs();
    inputs.values = mlx_rs::ops::zeros::<f32>(&[1, 0, 2, 3]).unwrap();
    let Err(error) = gated_delta::run(&inputs, &block.start(), |_, _| {}) else { panic!("no tokens") };
    assert!(error.to_string().contains("gated delta"), "{error}");
}

#[test]
fn decays_and_lengths_follow_their_formulas() {
    on_cpu();
    let (x, log, bias) = (numbers(1, 12), numbers(2, 4), numbers(3, 4));
    let got = gated_delta::decay(&array(&x, &[1, 3, 4]), &array(&log, &[4]), &array(&bias, &[4])).unwrap();
    let want: Vec<f32> = x
        .iter()
        .enumerate()
        .map(|(i, x)| (-log[i % 4].exp() * (1.0 + (x + bias[i % 4]).exp()).ln()).exp())
        .collect();
    assert!(off(&host(&got), &want) <= CLOSE);
    assert!(want.iter().all(|g| *g > 0.0 && *g <= 1.0));

    let rows = numbers(5, 12);
    let got = host(&gated_delta::of_length(&array(&rows, &[1, 1, 2, 6]), 0.5).unwrap());
    for (got, row) in got.chunks(6).zip(rows.chunks(6)) {
        let length = (row.iter().map(|v| v * v).sum::<f32>() + 1e-6).sqrt();
        let want: Vec<f32> = row.iter().map(|v| 0.5 * v / length).collect();
        assert!(off(got, &want) <= CLOSE);
    }
    // Nothing has no direction, and stays nothing.
    let zeros = host(&gated_delta::of_length(&array(&[0.0; 6], &[1, 1, 1, 6]), 1.0).unwrap());
    assert_eq!(zeros, [0.0; 6]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Convolution and rule reach the same bits wherever a sequence is cut.
    #[test]
    fn states_do_not_depend_on_cuts(seed in 1u64..1000, cut in 1usize..12) {
        on_cpu();
        let block = Block::new(seed, 12, 2);
        let inputs = block.inputs();
        let (whole, end) = gated_delta::run(&inputs, &block.start(), |_, _| {}).unwrap();
        let part = |from: usize, to: usize| {
            let rows = |x: &Array| {
                use mlx_rs::ops::indexing::TryIndexOp;
                x.try_index((.., from as i32..to as i32)).unwrap()
            };
            gated_delta::Inputs {
                queries: rows(&inputs.queries),
                keys: rows(&inputs.keys),
                values: rows(&inputs.values),
                decay: rows(&inputs.decay),
                rate: rows(&inputs.rate),
            }
        };
        let (front, middle) = gated_delta::run(&part(0, cut), &block.start(), |_, _| {}).unwrap();
        let (back, last) = gated_delta::run(&part(cut, 12), &middle, |_, _| {}).unwrap();
        let cut_outputs: Vec<f32> = host(&front).into_iter().chain(host(&back)).collect();
        prop_assert_eq!(cut_outputs, host(&whole));
        prop_assert_eq!(host(&last), host(&end));

        let x = numbers(seed, 12 * CHANNELS);
        let rows = |from: usize, to: usize| {
            array(&x[from * CHANNELS..to * CHANNELS], &[1, (to - from) as i32, CHANNELS as i32])
        };
        let (conv, _) = &convs()[0];
        let silence = conv.silence().unwrap();
        let (whole, _) = conv.forward(&silence, &rows(0, 12)).unwrap();
        let (front, seen) = conv.forward(&silence, &rows(0, cut)).unwrap();
        let seen = host(&seen);
        let tail = array(&seen[cut * CHANNELS..], &[1, KERNEL as i32 - 1, CHANNELS as i32]);
        let (back, _) = conv.forward(&tail, &rows(cut, 12)).unwrap();
        let cut_outputs: Vec<f32> = host(&front).into_iter().chain(host(&back)).collect();
        prop_assert_eq!(cut_outputs, host(&whole));
    }
}
