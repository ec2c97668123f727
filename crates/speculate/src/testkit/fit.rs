//! How far a sample lies from a law, and how far chance alone takes it.

/// The share of honest samples that may lie above the bound.
const RISK: f64 = 0.001;

/// A sample beside its law: the total variation between them, and its bound.
#[derive(Debug, Clone, Copy)]
pub struct Fit {
    /// ½ Σ |share − p|.
    variation: f64,
    /// See [`bound`].
    bound: f64,
    /// Samples that the law forbids.
    impossible: usize,
}

impl Fit {
    /// Counts of n independent samples beside the probabilities of their cells.
    ///
    /// # Panics
    /// Counts and law have different lengths.
    pub fn of(counts: &[usize], law: &[f64]) -> Self {
        assert_eq!(counts.len(), law.len());
        let total = counts.iter().sum::<usize>() as f64;
        let cells = || counts.iter().zip(law);
        Self {
            variation: cells().map(|(&count, p)| (count as f64 / total - p).abs()).sum::<f64>() / 2.0,
            bound: bound(law, total),
            impossible: cells().filter(|&(_, &p)| p == 0.0).map(|(count, _)| count).sum(),
        }
    }

    /// Like [`of`](Self::of) for few samples: neighbouring cells count as one until they are expected `least`
    /// times, which lowers the bound. Impossible cells stay apart.
    pub fn merged(counts: &[usize], law: &[f64], least: f64) -> Self {
        let total = counts.iter().sum::<usize>() as f64;
        let impossible = counts.iter().zip(law).filter(|&(_, &p)| p == 0.0).map(|(count, _)| count).sum();
        let (mut fewer, mut merged) = (vec![impossible], vec![0.0]);
        let mut open = false;
        for (&count, &p) in counts.iter().zip(law).filter(|&(_, &p)| p > 0.0) {
            if !open {
                fewer.push(0);
                merged.push(0.0);
            }
            let last = merged.len() - 1;
            (fewer[last], merged[last]) = (fewer[last] + count, merged[last] + p);
            open = merged[last] * total < least;
        }
        Self::of(&fewer, &merged)
    }

    /// No impossible sample, and a variation that chance explains.
    pub fn holds(&self) -> bool {
        self.impossible == 0 && self.variation < self.bound
    }

    /// The variation as a share of what chance allows; a faulty rule's must be well above 1.
    pub fn share(&self) -> f64 {
        self.variation / self.bound
    }
}

/// What the total variation between n independent samples and their own law exceeds with a probability of
/// at most [`RISK`].
///
/// The mean is at most ½ Σ √(p(1 − p)/n), since E|X| ≤ √E X² for the deviation X of each cell's share. One
/// sample changes the variation by at most 1/n, so it lies t above its mean with a probability of at most
/// exp(−2nt²) (McDiarmid: On the method of bounded differences, 1989).
fn bound(law: &[f64], total: f64) -> f64 {
    let mean = law.iter().map(|p| (p * (1.0 - p) / total).sqrt()).sum::<f64>() / 2.0;
    mean + ((1.0 / RISK).ln() / (2.0 * total)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_that_of_a_coin() {
        // ½ (½ + ½) / √n + √(ln 1000 / 2n).
        let fit = Fit::of(&[5_000, 5_000], &[0.5, 0.5]);
        assert!((fit.bound - (0.005 + 0.018_585)).abs() < 1e-6, "{fit:?}");
        assert!(fit.holds() && fit.variation == 0.0);
        assert!(Fit::of(&[6_000, 4_000], &[0.5, 0.5]).share() > 4.0);
        assert!(!Fit::of(&[9_999, 1], &[1.0, 0.0]).holds(), "an impossible token is never chance");
    }

    #[test]
    fn neighbours_merge_until_they_are_frequent() {
        let law = [0.9, 0.05, 0.0, 0.05];
        let counts = [90, 9, 0, 1];
        let (apart, merged) = (Fit::of(&counts, &law), Fit::merged(&counts, &law, 8.0));
        assert!((apart.variation - 0.04).abs() < 1e-12 && merged.variation < 1e-12);
        assert!(merged.bound < apart.bound && merged.holds());
        assert!(!Fit::merged(&[90, 9, 1, 0], &law, 8.0).holds(), "an impossible cell is not a rare one");
    }
}
