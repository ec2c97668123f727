//! Draft laws that bring every fault to light.

/// How a draft row differs from the target's, id after id in turn: what it says too little of, what it
/// hardly ever says, what it says far too often. Rejected drafts are then frequent, residuals hold ids with
/// and without a share in the draft law, and the draft's favourite is often the target's.
const TILTS: [f32; 3] = [-0.3, -5.0, 1.5];

/// Draft logits for a target's. The target's best id is also the draft's when they `agree`, and else one
/// that the draft says too little of.
pub(super) fn misleading(target: &[f32], agree: bool) -> Vec<f32> {
    let best = favourite(target);
    let of_best = if agree { 2 } else { 0 };
    let tilt = |id: usize| TILTS[(id + target.len() * 3 - best + of_best) % 3];
    target.iter().enumerate().map(|(id, logit)| logit + tilt(id)).collect()
}

/// The likeliest id.
pub(super) fn favourite(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("a row holds logits")
}

#[test]
fn the_favourite_is_shared_on_request() {
    let target = [0.5, 2.0, -1.0, 1.0, 1.9];
    assert_eq!(favourite(&misleading(&target, true)), 1);
    assert_ne!(favourite(&misleading(&target, false)), 1);
}
