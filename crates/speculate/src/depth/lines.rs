//! Estimates as lines of text: a kind, its numbers, and last of all a name.

use std::{
    fmt::{Display, Write as _},
    str::FromStr,
};

use super::{
    Estimates,
    acceptance::Position,
    cost::Cell,
    estimates::{Bucket, SourceEstimates},
    probe::BackOff,
};

/// More depths than any drafter has: a longer list is no trace.
const DEEPEST: usize = 1 << 16;

/// No time in milliseconds and no count is larger, or smaller, than this.
const LARGEST: f64 = 1e9;
const LEAST_MS: f64 = 1e-6;

/// A value, or a dash for none.
pub(super) fn optional<T: Display>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "-".to_owned(), T::to_string)
}

/// The words of a line.
pub(super) struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        Self(line)
    }

    pub(super) fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        Some(word).filter(|word| !word.is_empty())
    }

    pub(super) fn next<T: FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }

    /// A value or a dash.
    pub(super) fn maybe<T: FromStr>(&mut self) -> Option<Option<T>> {
        match self.word()? {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    /// A number that can be computed with: not negative and not beyond measure.
    fn number(&mut self) -> Option<f64> {
        self.next().filter(|number| (0.0..=LARGEST).contains(number))
    }

    /// A share between none and all.
    fn share(&mut self) -> Option<f64> {
        self.number().filter(|&share| share <= 1.0)
    }

    /// What is left, which is a name.
    pub(super) fn rest(&mut self) -> String {
        std::mem::take(&mut self.0).to_owned()
    }

    pub(super) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Estimates line by line. A number is written so that it reads back as the same number.
pub(super) fn write_estimates(estimates: &Estimates, out: &mut String) {
    let Estimates { round, plain, plain_rounds, sources, ledger } = estimates;
    let (credit, last) = (ledger.credit_ms, ledger.last);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "estimates {round} {plain_rounds} {credit} {last}");
    for (bucket, cell) in plain {
        let _ = writeln!(out, "plain {} {}", place(*bucket), numbers(cell));
    }
    for (name, source) in sources {
        let _ = writeln!(out, "tail {} {} {name}", source.tail.0, source.tail.1);
        for (bucket, curve) in &source.curves {
            for cell in &curve.cells {
                let _ = writeln!(out, "cost {} {} {name}", place(*bucket), numbers(cell));
            }
        }
        for Position { mean, count, recent, at, typical, texts, judged } in &source.acceptance.positions {
            let _ = writeln!(out, "position {mean} {count} {recent} {at} {typical} {texts} {judged} {name}");
        }
    }
    for ((name, depth), BackOff { last, pause }) in &ledger.tries {
        let _ = writeln!(out, "try {depth} {last} {pause} {name}");
    }
}

fn place(bucket: Bucket) -> String {
    format!("{} {}", bucket.constrained, bucket.length)
}

fn numbers(cell: &Cell) -> String {
    let Cell { ms, samples, at, streak, fastest } = cell;
    format!("{ms} {samples} {at} {streak} {fastest}")
}

/// Takes one line of estimates in.
pub(super) fn read_estimates(kind: &str, fields: &mut Fields<'_>, into: &mut Estimates) -> Option<()> {
    match kind {
        "estimates" => {
            (into.round, into.plain_rounds) = (fields.next()?, fields.number()?);
            let credit = fields.next().filter(|credit: &f64| credit.abs() <= LARGEST);
            (into.ledger.credit_ms, into.ledger.last) = (credit?, fields.next()?);
            fields.end()
        }
        "plain" => {
            let (bucket, cell) = (read_place(fields)?, read_cell(fields)?);
            into.plain.insert(bucket, cell);
            fields.end()
        }
        "try" => {
            let (depth, last, pause) = (fields.next()?, fields.next()?, fields.next()?);
            into.ledger.tries.insert((fields.rest(), depth), BackOff { last, pause });
            Some(())
        }
        _ => read_source(kind, fields, into),
    }
}

fn read_source(kind: &str, fields: &mut Fields<'_>, into: &mut Estimates) -> Option<()> {
    match kind {
        "tail" => {
            let tail = (fields.number()?, fields.number()?);
            into.sources.insert(fields.rest(), SourceEstimates { tail, ..SourceEstimates::default() });
        }
        "cost" => {
            let (bucket, cell) = (read_place(fields)?, read_cell(fields)?);
            let curves = &mut into.sources.get_mut(&fields.rest())?.curves;
            let cells = &mut curves.entry(bucket).or_default().cells;
            cells.push(cell);
            return (cells.len() <= DEEPEST).then_some(());
        }
        "position" => {
            let (mean, count, recent) = (fields.share()?, fields.number()?, fields.share()?);
            let (at, typical, texts) = (fields.next()?, fields.share()?, fields.number()?);
            let position = Position { mean, count, recent, at, typical, texts, judged: fields.next()? };
            let positions = &mut into.sources.get_mut(&fields.rest())?.acceptance.positions;
            positions.push(position);
            return (positions.len() <= DEEPEST).then_some(());
        }
        _ => return None,
    }
    Some(())
}

fn read_place(fields: &mut Fields<'_>) -> Option<Bucket> {
    Some(Bucket { constrained: fields.next()?, length: fields.next().filter(|&length| length < 64)? })
}

fn read_cell(fields: &mut Fields<'_>) -> Option<Cell> {
    let (ms, samples, at) = (fields.number()?, fields.number()?, fields.next()?);
    let (streak, fastest) = (fields.next()?, fields.number()?);
    // Costs are divided by.
    (ms >= LEAST_MS || samples == 0.0).then_some(())?;
    Some(Cell { ms, samples, at, streak, fastest })
}
