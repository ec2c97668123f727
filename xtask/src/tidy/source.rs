//! A Rust file as the rules see it: comments and literals blanked out, tests marked, functions found.

/// One Rust file.
#[derive(Debug)]
pub(super) struct Source {
    /// Relative to the project, with forward slashes.
    pub(super) path: String,
    pub(super) text: String,
    /// The text with every comment and the inside of every literal replaced by blanks; line breaks stay.
    pub(super) code: String,
    /// For each line, whether it belongs to a test.
    pub(super) is_test: Vec<bool>,
    pub(super) functions: Vec<Function>,
}

/// A function with a body. Lines count from one.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) lines: usize,
    pub(super) parameters: usize,
}

impl Source {
    /// All Rust files among some texts; a module that is declared under `cfg(test)` makes its file a test.
    pub(super) fn all(texts: &[(String, String)]) -> Vec<Self> {
        let rust = || texts.iter().filter(|(path, _)| path.ends_with(".rs"));
        let mut sources: Vec<_> = rust().map(|(path, text)| Self::new(path, text)).collect();
        let test_files: Vec<String> = sources.iter().flat_map(Self::test_modules).collect();
        for source in &mut sources {
            if test_files.iter().any(|file| is_below(&source.path, file)) {
                source.is_test.fill(true);
            }
        }
        sources
    }

    pub(super) fn new(path: &str, text: &str) -> Self {
        let code = blank(text);
        let whole = ["/tests/", "/examples/"].iter().any(|part| path.contains(part));
        let mut is_test = vec![whole; text.lines().count()];
        for (start, end) in test_items(&code) {
            let lines = line_of(&code, start)..=line_of(&code, end);
            is_test.iter_mut().enumerate().for_each(|(i, test)| *test |= lines.contains(&(i + 1)));
        }
        let functions = functions(&code);
        Self { path: path.into(), text: text.into(), code, is_test, functions }
    }

    /// The folder name of the crate, for files below `crates/`.
    pub(super) fn krate(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Lines of blanked code outside tests, with their numbers.
    pub(super) fn live_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.code.lines().enumerate();
        lines.filter(|(i, _)| !self.is_test.get(*i).copied().unwrap_or(false)).map(|(i, line)| (i + 1, line))
    }

    /// The path stems of modules in other files that are declared as tests: `mod x;` under `cfg(test)`.
    fn test_modules(&self) -> Vec<String> {
        let stem = self.path.trim_end_matches(".rs");
        let (parent, file) = stem.rsplit_once('/').unwrap_or(("", stem));
        let folder = if matches!(file, "mod" | "lib" | "main") { parent } else { stem };
        let items = test_items(&self.code).into_iter().map(|(start, end)| &self.code[start..=end]);
        items
            .filter_map(|item| item.strip_suffix(';')?.rsplit_once("mod "))
            .map(|(_, name)| format!("{folder}/{}", name.trim()))
            .collect()
    }
}

/// Whether a file is the module with this stem or a part of it.
fn is_below(path: &str, stem: &str) -> bool {
    path.strip_prefix(stem).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// The number of the line that holds a byte.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Replaces comments and the inside of literals by blanks, byte for byte.
pub(super) fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (end, keep) = token_end(bytes, at);
        if !keep {
            out[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        }
        at = end;
    }
    // Whole tokens are replaced, so no character is cut.
    String::from_utf8(out).unwrap_or_default()
}

/// Where the token at `at` ends, and whether it is code.
fn token_end(bytes: &[u8], at: usize) -> (usize, bool) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return (at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()), false);
    }
    if rest.starts_with(b"/*") {
        return (at + block_comment(rest), false);
    }
    let in_word = at > 0 && is_word(bytes[at - 1]);
    let marker = if in_word { 0 } else { literal_marker(rest) };
    match rest.get(marker) {
        Some(b'"') => {
            let hashes = rest[..marker].iter().filter(|&&b| b == b'#').count();
            let raw = rest[..marker].contains(&b'r');
            (at + marker + string(&rest[marker..], raw, hashes), false)
        }
        Some(b'\'') if rest[..marker].iter().all(|&b| b == b'b') => match character(&rest[marker..]) {
            Some(length) => (at + marker + length, false),
            None => (at + marker + 1, true),
        },
        _ => (at + 1, true),
    }
}

/// The length of a prefix such as `r#`, `b` or `br##` before a quote.
fn literal_marker(rest: &[u8]) -> usize {
    let letters = rest.iter().take_while(|b| b"brc".contains(b)).count();
    let raw = rest[..letters].contains(&b'r');
    let hashes = if raw { rest[letters..].iter().take_while(|&&b| b == b'#').count() } else { 0 };
    let quoted = matches!(rest.get(letters + hashes), Some(b'"' | b'\''));
    if letters <= 2 && quoted { letters + hashes } else { 0 }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut i) = (0usize, 0);
    while i < rest.len() {
        match &rest[i..] {
            [b'/', b'*', ..] => (depth, i) = (depth + 1, i + 2),
            [b'*', b'/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i.min(rest.len())
}

fn string(rest: &[u8], raw: bool, hashes: usize) -> usize {
    let mut i = 1;
    while i < rest.len() {
        match rest[i] {
            b'\\' if !raw => i += 1,
            b'"' if rest[i + 1..].iter().take(hashes).filter(|&&b| b == b'#').count() == hashes => {
                return i + 1 + hashes;
            }
            _ => {}
        }
        i += 1;
    }
    rest.len()
}

/// The length of a character literal; `None` for a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        return Some(3 + rest.get(3..)?.iter().position(|&b| b == b'\'')? + 1);
    }
    let text = std::str::from_utf8(&rest[1..rest.len().min(6)]);
    let valid = text.map_or_else(|error| error.valid_up_to(), str::len);
    let first = std::str::from_utf8(&rest[1..1 + valid]).ok()?.chars().next()?.len_utf8();
    (rest.get(1 + first) == Some(&b'\'')).then_some(first + 2)
}

pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The first and last byte of every item under an attribute `cfg(…test…)`, the attribute included.
fn test_items(code: &str) -> Vec<(usize, usize)> {
    let mut items = Vec::new();
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(") {
        let start = from + found;
        let Some(end) = closing(code, start + 1) else { break };
        from = end + 1;
        let words = code[start..end].split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        // `not(test)` marks code that tests do not see.
        if words.clone().any(|word| word == "test") && !words.clone().any(|word| word == "not") {
            let last = item_end(code, end + 1);
            items.push((start, last));
            from = last + 1;
        }
    }
    items
}

/// The last byte of the item that starts at `at`: its `;`, or the end of its first block.
fn item_end(code: &str, at: usize) -> usize {
    let mut i = at;
    while let Some(&byte) = code.as_bytes().get(i) {
        match byte {
            b';' => return i,
            b'{' => return closing(code, i).unwrap_or(code.len() - 1),
            b'(' | b'[' => i = closing(code, i).unwrap_or(code.len() - 1),
            _ => {}
        }
        i += 1;
    }
    code.len().saturating_sub(1)
}

/// The bracket that closes the one at `at`.
fn closing(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (i, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// All functions with bodies, inner ones too.
fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if at > 0 && is_word(code.as_bytes()[at - 1]) {
            continue;
        }
        found.extend(function(code, at));
    }
    found
}

fn function(code: &str, at: usize) -> Option<Function> {
    let rest = &code[at + 3..];
    let name: String = rest.trim_start().chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect();
    if name.is_empty() {
        return None;
    }
    let open = parameters_start(code, at)?;
    let close = closing(code, open)?;
    let end = item_end(code, close + 1);
    // A declaration in a trait has no body.
    if code.as_bytes().get(end) != Some(&b'}') {
        return None;
    }
    let line = line_of(code, at);
    let lines = line_of(code, end) - line + 1;
    Some(Function { name, line, lines, parameters: parameters(&code[open + 1..close]) })
}

/// The parenthesis after the name and its generics; `->` inside generics closes nothing.
fn parameters_start(code: &str, at: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut angle = 0usize;
    for i in at..bytes.len() {
        match bytes[i] {
            b'<' => angle += 1,
            b'>' if bytes[i - 1] != b'-' => angle = angle.saturating_sub(1),
            b'(' if angle == 0 => return Some(i),
            b'{' | b';' if angle == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Commas outside all brackets separate parameters; one may trail.
fn parameters(list: &str) -> usize {
    let bytes = list.as_bytes();
    let (mut depth, mut count, mut empty) = (0i32, 0, true);
    for (i, &byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b'>' if i == 0 || bytes[i - 1] != b'-' => depth -= 1,
            b',' if depth == 0 => {
                count += 1;
                empty = true;
                continue;
            }
            _ => {}
        }
        empty &= byte.is_ascii_whitespace();
    }
    count + usize::from(!empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            ("f(\"x\\\"y\", 'z')", "f(      ,    )"),
            (
                "r#\"a\"b\"# + b'x' + br\"\\\" + '\\n' + '\\u{1f}'",
                "         +      +       +      +         ",
            ),
            ("fn f<'a>(x: &'a str) -> char { 'é' }", "fn f<'a>(x: &'a str) -> char {      }"),
            ("var\"s\" + 'static", "var    + 'static"),
        ];
        for (text, expected) in cases {
            // A blanked two-byte letter becomes two blanks.
            assert_eq!(blank(text), expected, "{text}");
        }
    }

    #[test]
    fn tests_are_marked() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(any(test, feature = \"k\"))]\npub mod kit;\n#[cfg(not(test))]\nfn d() {}\n";
        let source = Source::new("crates/x/src/a.rs", text);
        let expected = [false, true, true, true, true, false, true, true, false, false];
        assert_eq!(source.is_test, expected);
        let live: Vec<_> = source.live_lines().map(|(number, _)| number).collect();
        assert_eq!(live, [1, 6, 9, 10]);
        assert_eq!(source.krate(), Some("x"));
    }

    #[test]
    fn files_of_test_modules_are_tests() {
        let texts = |list: &[(&str, &str)]| -> Vec<(String, String)> {
            list.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect()
        };
        let sources = Source::all(&texts(&[
            (
                "crates/x/src/lib.rs",
                "#[cfg(test)]\nmod fakes;\n#[cfg(any(test, feature = \"kit\"))]\npub mod kit;\nmod live;\n",
            ),
            ("crates/x/src/fakes.rs", "fn a() {}\n"),
            ("crates/x/src/kit/deep.rs", "fn a() {}\n"),
            ("crates/x/src/live.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/x/src/live/tests.rs", "fn a() {}\n"),
            ("crates/x/src/fakes_not.rs", "fn a() {}\n"),
            ("crates/x/tests/suite.rs", "fn a() {}\n"),
        ]));
        let tests: Vec<_> = sources.iter().map(|source| source.is_test[0]).collect();
        assert_eq!(tests, [true, true, true, true, true, false, true]);
        assert!(!sources[0].is_test[4]);
    }

    #[test]
    fn functions_are_measured() {
        let text = "trait T { fn none(&self, a: u8); }\nfn one<F: Fn(u8) -> u8>(f: F, m: HashMap<u8, u8>, ) -> Vec<(u8, u8)>\nwhere F: Send {\n    fn inner() {}\n    g(|x| { x })\n}\ntype P = fn (u8, u8);\n";
        let source = Source::new("a.rs", text);
        let found: Vec<_> =
            source.functions.iter().map(|f| (f.name.as_str(), f.line, f.lines, f.parameters)).collect();
        assert_eq!(found, [("one", 2, 5, 2), ("inner", 4, 1, 0)]);
    }

    #[test]
    fn broken_text_is_survived() {
        for text in
            ["\"", "'", "'\\", "/*", "r#\"", "#[cfg(test)]", "#[cfg(test", "fn x(", "fn x() {", "b'", "{{)"]
        {
            let _ = Source::new("a.rs", text);
        }
    }
}
