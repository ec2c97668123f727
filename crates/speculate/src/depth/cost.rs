//! What a round costs at each depth: measured cells, and what follows from them for depths never tried.

/// Weight of the newest measurement once a cell is settled: recent enough to follow a warming machine,
/// and ten percent of noise leaves one and a half in the average.
const GAIN: f64 = 0.04;
/// A measurement moves its cell as if it were at most this share away: one hiccup of the system must not
/// decide the depth.
const CLAMP: f64 = 0.25;
/// So many clamped measurements in a row, all on one side, are no hiccup but a new cost.
const STREAK: i32 = 3;
/// A cell with so many measurements was right before: when it is wrong now, the machine has changed.
const SETTLED: f64 = 6.0;
/// Spread of one measurement, relative; what optimism assumes, not a claim about the machine.
const SPREAD: f64 = 0.10;
/// How many spreads optimism allows.
const OPTIMISM: f64 = 1.5;
/// After so many rounds without a measurement, half of a cell's certainty is left.
pub(crate) const HALF_LIFE: f64 = 256.0;
/// How many measurements the other depths count for: costs rarely jump from one depth to the next, single
/// measurements often do.
const LEANING: f64 = 2.0;
/// A measurement is never forgotten beyond this: even an old one says more than none.
const LEAST_SAMPLES: f64 = 0.5;
/// No round is believed to cost less than this share of what was measured.
const LOWEST: f64 = 0.5;
/// The share of the only measured depth's cost that a far shallower one has at least: a forward of one row is
/// most of a forward of several.
const SHALLOWEST: f64 = 0.2;
/// Growth per draft, relative to a round's cost, while only one depth was measured and plain was not.
const PRIOR_SLOPE: f64 = 0.05;

/// How much of its certainty an estimate keeps after `age` rounds. No power function: replays must agree to
/// the last bit on every machine.
pub(crate) fn freshness(age: u64) -> f64 {
    HALF_LIFE / (HALF_LIFE + age as f64)
}

/// The running average of one kind of round, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Cell {
    pub(crate) ms: f64,
    pub(crate) samples: f64,
    /// The round of the last measurement.
    pub(crate) at: u64,
    /// Clamped measurements in a row, negative when they were faster.
    pub(crate) streak: i32,
    /// The fastest of them.
    pub(crate) fastest: f64,
}

impl Cell {
    pub(crate) fn known(&self) -> bool {
        self.samples > 0.0
    }

    /// Takes a measurement in. When it shows that the machine has changed, returns new cost over old.
    pub(crate) fn learn(&mut self, ms: f64, now: u64) -> Option<f64> {
        self.at = now;
        if !self.known() {
            (self.ms, self.samples) = (ms, 1.0);
            return None;
        }
        let change = ms / self.ms - 1.0;
        self.streak = match change.abs() > CLAMP {
            false => 0,
            true if change > 0.0 => self.streak.max(0) + 1,
            true => self.streak.min(0) - 1,
        };
        self.fastest = if self.streak.abs() > 1 { self.fastest.min(ms) } else { ms };
        if self.streak.abs() >= STREAK {
            let settled = self.samples >= SETTLED;
            let ratio = self.fastest / self.ms;
            (self.ms, self.samples, self.streak) = (self.fastest, 1.0, 0);
            return settled.then_some(ratio);
        }
        // Hiccups only ever slow a round down: of two that disagree the faster one is the better witness.
        if self.samples < 2.0 && change < -CLAMP {
            (self.ms, self.samples) = (ms, 1.0);
            return None;
        }
        let gain = (1.0 / (self.samples + 1.0)).max(GAIN);
        self.ms *= 1.0 + gain * change.clamp(-CLAMP, CLAMP);
        self.samples = (self.samples + 1.0).min(1.0 / GAIN);
        None
    }

    /// The lowest cost that the measurements leave believable.
    fn low(&self, now: u64) -> f64 {
        let samples = (self.samples * freshness(now.saturating_sub(self.at))).max(LEAST_SAMPLES);
        self.ms * (1.0 - OPTIMISM * SPREAD / samples.sqrt()).max(LOWEST)
    }
}

/// The expected cost of a depth, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    pub(crate) mean: f64,
    /// The lowest believable one.
    pub(crate) low: f64,
}

/// Cells of one source by depth; depth 0 belongs to nobody and is kept apart.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Curve {
    /// Cell i is depth i + 1.
    pub(crate) cells: Vec<Cell>,
}

#[derive(Debug, Clone, Copy)]
struct Point {
    depth: f64,
    ms: f64,
    weight: f64,
    low: f64,
}

impl Curve {
    pub(crate) fn learn(&mut self, depth: usize, ms: f64, now: u64) {
        let Some(index) = depth.checked_sub(1) else { return };
        if self.cells.len() < depth {
            self.cells.resize(depth, Cell::default());
        }
        let Some(ratio) = self.cells[index].learn(ms, now) else { return };
        // All depths verify with the same kernels: what changed one of them most likely changed all.
        for (other, cell) in self.cells.iter_mut().enumerate() {
            if other != index && cell.known() {
                cell.ms *= ratio;
                cell.samples = 1.0;
            }
        }
    }

    /// The deepest depth with a measurement.
    pub(crate) fn frontier(&self) -> usize {
        self.cells.iter().rposition(Cell::known).map_or(0, |index| index + 1)
    }

    /// Costs of the depths 1 to `max`; empty before the first measurement.
    ///
    /// Between measured depths costs lie on a line, past the deepest they grow with the common slope, and a
    /// deeper round never costs less than a shallower one. A depth that was seldom measured leans on what the
    /// others say about it.
    pub(crate) fn predict(&self, plain: &Cell, max: usize, now: u64) -> Vec<Cost> {
        let measured = self.points(plain, now);
        if measured.last().is_none_or(|p| p.depth == 0.0) {
            return Vec::new();
        }
        let mut points = lean(&measured);
        pool(&mut points);
        let mut floor: f64 = 0.0;
        for point in &mut points {
            floor = floor.max(point.low);
            point.low = floor.min(point.ms);
        }
        let slope = slope(&points);
        (1..=max).map(|depth| estimate(&points, slope, depth as f64)).collect()
    }

    /// Measured depths, with plain decoding at 0.
    fn points(&self, plain: &Cell, now: u64) -> Vec<Point> {
        let cells = std::iter::once(plain).chain(&self.cells).enumerate().filter(|(_, cell)| cell.known());
        let point = |(depth, cell): (usize, &Cell)| Point {
            depth: depth as f64,
            ms: cell.ms,
            weight: cell.samples,
            low: cell.low(now),
        };
        cells.map(point).collect()
    }
}

/// The cost at a depth according to `points`, the last of which is drafted.
fn estimate(points: &[Point], slope: f64, depth: f64) -> Cost {
    match points.iter().position(|p| p.depth >= depth) {
        Some(at) if points[at].depth == depth => Cost { mean: points[at].ms, low: points[at].low },
        Some(0) => {
            let above = &points[0];
            let mean = above.ms * (1.0 - PRIOR_SLOPE * (above.depth - depth)).max(SHALLOWEST);
            Cost { mean, low: mean.min(above.low) }
        }
        Some(at) => {
            let (below, above) = (&points[at - 1], &points[at]);
            let share = (depth - below.depth) / (above.depth - below.depth);
            Cost { mean: below.ms + share * (above.ms - below.ms), low: below.low }
        }
        None => {
            let last = &points[points.len() - 1];
            let further = depth - last.depth;
            Cost { mean: last.ms + slope * further, low: last.low + gentlest(points) * further }
        }
    }
}

/// Every drafted depth leans on what the other depths say about it.
fn lean(measured: &[Point]) -> Vec<Point> {
    let leaning = |at: usize| {
        let point = measured[at];
        let others: Vec<Point> =
            measured.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, p)| *p).collect();
        if point.depth == 0.0 || others.iter().filter(|p| p.depth > 0.0).count() < 2 {
            return point;
        }
        let said = estimate(&others, slope(&others), point.depth);
        // Between neighbours that differ much the step may be anywhere.
        let doubt = (said.mean - said.low) / (SPREAD * said.mean);
        let weight = LEANING / (1.0 + doubt * doubt);
        let ms = (point.ms * point.weight + said.mean * weight) / (point.weight + weight);
        Point { ms, low: point.low.min(ms), ..point }
    };
    (0..measured.len()).map(leaning).collect()
}

/// Pools adjacent violators (isotonic regression): neighbours that are out of order share their mean.
fn pool(points: &mut [Point]) {
    let mut blocks: Vec<(f64, f64, usize)> = Vec::new();
    for point in points.iter() {
        let mut block = (point.ms, point.weight, 1);
        while let Some(&(ms, weight, count)) = blocks.last().filter(|last| last.0 > block.0) {
            blocks.pop();
            let total = weight + block.1;
            block = ((ms * weight + block.0 * block.1) / total, total, count + block.2);
        }
        blocks.push(block);
    }
    let pooled = blocks.iter().flat_map(|&(ms, _, count)| std::iter::repeat_n(ms, count));
    points.iter_mut().zip(pooled).for_each(|(point, ms)| point.ms = ms);
}

/// Milliseconds per further draft, past the deepest measured depth.
fn slope(points: &[Point]) -> f64 {
    let drafted: Vec<&Point> = points.iter().filter(|p| p.depth > 0.0).collect();
    let Some(last) = drafted.last() else { return 0.0 };
    let fitted = match (&drafted[..], points.first().filter(|p| p.depth == 0.0)) {
        ([only], Some(plain)) => (only.ms - plain.ms) / only.depth,
        ([_], None) => last.ms * PRIOR_SLOPE,
        _ => least_squares(&drafted),
    };
    fitted.clamp(0.0, last.ms / last.depth)
}

/// The smallest growth per draft between two neighbours: a step that was measured need not come again.
fn gentlest(points: &[Point]) -> f64 {
    let pairs = points.windows(2).map(|pair| (pair[1].ms - pair[0].ms) / (pair[1].depth - pair[0].depth));
    pairs.reduce(f64::min).unwrap_or(0.0).max(0.0)
}

fn least_squares(points: &[&Point]) -> f64 {
    let total: f64 = points.iter().map(|p| p.weight).sum();
    let mean = |of: fn(&Point) -> f64| points.iter().map(|p| p.weight * of(p)).sum::<f64>() / total;
    let (x, y) = (mean(|p| p.depth), mean(|p| p.ms));
    let (mut over, mut under) = (0.0, 0.0);
    for p in points {
        over += p.weight * (p.depth - x) * (p.ms - y);
        under += p.weight * (p.depth - x) * (p.depth - x);
    }
    over / under
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(ms: f64, samples: f64) -> Cell {
        Cell { ms, samples, at: 1, ..Cell::default() }
    }

    /// Cells of depth 1 and so on; 0 for a depth that was never measured.
    fn curve(costs: &[f64]) -> Curve {
        let known = |&ms: &f64| if ms > 0.0 { cell(ms, 25.0) } else { Cell::default() };
        Curve { cells: costs.iter().map(known).collect() }
    }

    fn means(curve: &Curve, plain: f64, max: usize) -> Vec<f64> {
        let costs = curve.predict(&cell(plain, 25.0), max, 1);
        costs.iter().map(|cost| (cost.mean * 100.0).round() / 100.0).collect()
    }

    #[test]
    fn one_hiccup_is_clamped_and_three_in_a_row_are_a_new_cost() {
        let mut settled = cell(10.0, 25.0);
        assert_eq!(settled.learn(100.0, 2), None);
        assert!((settled.ms - 10.1).abs() < 1e-9, "{}", settled.ms);
        assert_eq!(settled.learn(10.0, 3), None);
        assert_eq!((settled.learn(20.0, 4), settled.learn(22.0, 5)), (None, None));
        let before = settled.ms;
        assert_eq!(settled.learn(90.0, 6), Some(20.0 / before), "the fastest of the three is no hiccup");
        assert_eq!((settled.ms, settled.samples), (20.0, 1.0));
    }

    #[test]
    fn of_two_first_measurements_that_disagree_the_faster_counts() {
        let mut new = Cell::default();
        assert_eq!((new.learn(50.0, 1), new.learn(10.0, 2)), (None, None));
        assert_eq!(new.ms, 10.0);
    }

    #[test]
    fn a_change_at_one_depth_is_expected_at_all_of_them() {
        let mut curve = curve(&[10.0, 12.0]);
        (2..5).for_each(|now| curve.learn(1, 20.0, now));
        assert_eq!(curve.cells[0].ms, 20.0);
        assert!(curve.cells[1].ms > 20.0 && curve.cells[1].samples == 1.0, "{:?}", curve.cells[1]);
    }

    #[test]
    fn depths_that_were_never_measured_follow_from_the_others() {
        assert!(means(&curve(&[]), 10.0, 4).is_empty());
        assert_eq!(means(&curve(&[0.0, 0.0, 0.0, 14.0]), 10.0, 6), [11.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
        assert_eq!(means(&curve(&[12.0, 0.0, 0.0, 15.0]), 10.0, 5)[3], 15.0);
    }

    #[test]
    fn a_deeper_round_is_never_expected_to_cost_less() {
        let costs = means(&curve(&[13.0, 11.0, 12.0]), 12.5, 5);
        assert!(costs.windows(2).all(|pair| pair[0] <= pair[1]), "{costs:?}");
    }

    #[test]
    fn what_is_believable_at_best_lies_below_and_grows_with_depth() {
        let costs = curve(&[12.0, 0.0, 20.0]).predict(&cell(10.0, 25.0), 6, 900);
        for cost in &costs {
            assert!(cost.low <= cost.mean, "{cost:?}");
        }
        assert!(costs.windows(2).all(|pair| pair[0].low <= pair[1].low), "{costs:?}");
    }
}
