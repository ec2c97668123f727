//! What the sampler's options make of logits, in float64 and one step at a time.

use foretoken_sample::SamplingOptions;

/// The law of the token after `seen`, written down once more and slowly: penalties, bans and masks, top-k, temperature and softmax, top-p,
/// min-p, renormalisation. The temperature is above 0, and biases and early end tokens are not known here.
pub fn exact_law(
    logits: &[f32],
    options: &SamplingOptions,
    seen: &[u32],
    allowed: impl Fn(u32) -> bool,
) -> Vec<f64> {
    let mut logits = penalised(logits, options, seen);
    for (id, logit) in logits.iter_mut().enumerate() {
        if is_banned(options, seen, id as u32) || !allowed(id as u32) {
            *logit = f64::NEG_INFINITY;
        }
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let kept = if options.top_k == 0 { logits.len() } else { options.top_k as usize };
    let mut p = vec![0.0; logits.len()];
    order.iter().take(kept).for_each(|&i| p[i] = (logits[i] / f64::from(options.temperature)).exp());
    normalise(&mut p);
    let mut ahead = 0.0;
    for &i in &order {
        let own = p[i];
        if ahead >= f64::from(options.top_p) {
            p[i] = 0.0;
        }
        ahead += own;
    }
    let best = p[order[0]];
    p.iter_mut().filter(|p| **p < best * f64::from(options.min_p)).for_each(|p| *p = 0.0);
    normalise(&mut p);
    p
}

fn normalise(p: &mut [f64]) {
    let sum: f64 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
}

fn penalised(logits: &[f32], options: &SamplingOptions, seen: &[u32]) -> Vec<f64> {
    let window = usize::try_from(options.repeat_last_n).unwrap_or(usize::MAX).min(seen.len());
    let window = &seen[seen.len() - window..];
    let count = |id: usize| window.iter().filter(|&&seen| seen as usize == id).count() as f64;
    let penalised = |(id, &logit): (usize, &f32)| match (count(id), f64::from(logit)) {
        (0.0, logit) => logit,
        (count, logit) => {
            let repeat = f64::from(options.repeat_penalty);
            let logit = if logit > 0.0 { logit / repeat } else { logit * repeat };
            logit - count * f64::from(options.frequency_penalty) - f64::from(options.presence_penalty)
        }
    };
    logits.iter().enumerate().map(penalised).collect()
}

fn is_banned(options: &SamplingOptions, seen: &[u32], id: u32) -> bool {
    options.banned.iter().any(|sequence| match sequence.split_last() {
        Some((&last, before)) => last == id && seen.ends_with(before),
        None => false,
    })
}
