//! Where tokens came from, as colours of the terminal.

use foretoken_speculate::Provenance;

const KINDS: [(&str, &str); 5] =
    [("plain", "0"), ("drafted", "32"), ("residual", "31"), ("bonus", "36"), ("forced", "35")];

/// The name of where a token came from.
pub(crate) fn name(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Drafted { .. } => "drafted",
        Provenance::Residual => "residual",
        Provenance::Bonus => "bonus",
        Provenance::Forced { .. } => "forced",
        _ => "plain",
    }
}

/// A text in the colour of where it came from.
pub(crate) fn paint(text: &str, provenance: Provenance) -> String {
    painted(text, name(provenance))
}

/// What the colours mean, on one line.
pub(crate) fn legend() -> String {
    KINDS.map(|(kind, _)| painted(kind, kind)).join(" ")
}

fn painted(text: &str, kind: &str) -> String {
    let code = KINDS.iter().find(|(name, _)| *name == kind).map_or("0", |(_, code)| code);
    format!("\x1b[{code}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_colour_of_its_own() {
        let painted = KINDS.map(|(kind, _)| painted("x", kind));
        assert!(painted.iter().enumerate().all(|(i, text)| !painted[..i].contains(text)));
        assert!(KINDS.iter().all(|(kind, _)| legend().contains(kind)));
        assert_eq!(paint("a", Provenance::Bonus), "\x1b[36ma\x1b[0m");
    }
}
