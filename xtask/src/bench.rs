//! `cargo xtask bench`: runs the benchmarks and writes what they measured beside where they ran.
//!
//! A benchmark reports itself by printing one line that starts with `foretoken-bench ` and goes on with a JSON object.
//! `name` is required. A benchmark that decodes also prints `token_hash`, a hash of all ids that it produced, and one
//! that speculates greedily adds `plain_hash`, the same of plain decoding; when the two differ the command fails,
//! because a benchmark that decodes something else measures nothing. All other keys are kept as they are:
//!
//! ```text
//! foretoken-bench {"name": "decode/seq-4", "token_hash": "91c0…", "plain_hash": "91c0…", "tokens_per_second": 21.5}
//! ```

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::failure::{Context, Failure, Result, fail};
use crate::json::Json;
use crate::project::{Project, write_if_changed};
use crate::tools::{cargo, line_of};
use crate::{model, native};

pub(crate) const USAGE: &str = "bench [FILTER]
    run the benchmarks (all, or those whose name contains FILTER) and write target/bench/*.json";

const PREFIX: &str = "foretoken-bench ";

pub(crate) fn command(project: &Project, args: Arguments) -> Result {
    let filter = args.rest();
    native::ensure(project)?;
    model::ensure(project)?;
    let mut command = cargo();
    command.args(["bench", "--locked", "-p", "foretoken-benches", "--benches", "--"]).args(&filter);
    let reports = run(command.current_dir(project.root()))?;
    if reports.is_empty() && filter.is_empty() {
        return fail("no benchmark reported itself");
    }
    let setting = setting(project)?;
    let folder = project.path("target/bench");
    for report in &reports {
        write(&folder, report, &setting)?;
    }
    println!("{} reports in {}", reports.len(), folder.display());
    same_tokens(&reports)
}

/// Shows everything and keeps the reports.
fn run(command: &mut Command) -> Result<Vec<Json>> {
    let mut child = command.stdout(Stdio::piped()).spawn().context(|| "starting cargo".into())?;
    let pipe = child.stdout.take().ok_or_else(|| Failure("cargo has no output".into()))?;
    let mut reports = Vec::new();
    for line in BufReader::new(pipe).lines() {
        let line = line.context(|| "reading the benchmarks' output".into())?;
        match parse(&line)? {
            Some(report) => reports.push(report),
            None => println!("{line}"),
        }
    }
    let status = child.wait().context(|| "waiting for cargo".into())?;
    if status.success() { Ok(reports) } else { fail(format!("the benchmarks failed ({status})")) }
}

fn parse(line: &str) -> Result<Option<Json>> {
    let Some(text) = line.trim_start().strip_prefix(PREFIX) else { return Ok(None) };
    let report = Json::parse(text).context(|| format!("the report {text:?}"))?;
    match report.str("name") {
        Some(_) => Ok(Some(report)),
        None => fail(format!("the report {text:?} has no name")),
    }
}

/// Where and on what the numbers were measured.
fn setting(project: &Project) -> Result<Vec<(String, Json)>> {
    let git = |args: &[&str]| line_of(Command::new("git").args(args).current_dir(project.root()));
    let revision = git(&["rev-parse", "HEAD"]).map_or(Json::Null, Json::Text);
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some();
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    Ok(vec![
        ("host".into(), line_of(Command::new("uname").arg("-n")).map_or(Json::Null, Json::Text)),
        ("system".into(), Json::text(format!("{} {}", std::env::consts::OS, std::env::consts::ARCH))),
        ("processor".into(), processor().map_or(Json::Null, Json::Text)),
        ("cores".into(), Json::Number(cores as f64)),
        ("revision".into(), revision),
        ("uncommitted_changes".into(), Json::Bool(changed)),
        ("mlx".into(), Json::text(native::mlx_version(project)?)),
    ])
}

fn processor() -> Option<String> {
    if cfg!(target_os = "macos") {
        return line_of(Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"]));
    }
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn write(folder: &Path, report: &Json, setting: &[(String, Json)]) -> Result {
    let Json::Object(entries) = report else { return fail("a report is not an object") };
    let all = Json::Object(entries.iter().chain(setting).cloned().collect());
    let name = file_name(report.str("name").unwrap_or("unnamed"));
    write_if_changed(&folder.join(format!("{name}.json")), format!("{all}\n").as_bytes()).map(|_| ())
}

fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

/// Fails when a benchmark decoded other tokens than plain decoding does.
fn same_tokens(reports: &[Json]) -> Result {
    let differs =
        |report: &&Json| report.get("plain_hash").is_some_and(|hash| report.get("token_hash") != Some(hash));
    let names: Vec<_> = reports.iter().filter(differs).filter_map(|report| report.str("name")).collect();
    if names.is_empty() {
        Ok(())
    } else {
        fail(format!("not the tokens of plain decoding: {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_reports_among_other_lines() {
        assert_eq!(parse("decode/plain    time: [1 ms 2 ms 3 ms]").unwrap(), None);
        let report = parse(r#"foretoken-bench {"name": "a/b", "token_hash": "1"}"#).unwrap().unwrap();
        assert_eq!(report.str("token_hash"), Some("1"));
        assert!(parse("foretoken-bench {").unwrap_err().0.contains("the report"));
        assert!(parse("foretoken-bench {\"n\": 1}").unwrap_err().0.contains("no name"));
    }

    #[test]
    fn other_tokens_than_plain_fail() {
        let report = |text: &str| Json::parse(text).unwrap();
        let good = report(r#"{"name": "good", "token_hash": "1", "plain_hash": "1"}"#);
        let alone = report(r#"{"name": "plain", "token_hash": "1"}"#);
        let bad = report(r#"{"name": "bad", "token_hash": "1", "plain_hash": "2"}"#);
        let silent = report(r#"{"name": "silent", "plain_hash": "2"}"#);
        assert!(same_tokens(&[good.clone(), alone]).is_ok());
        let message = same_tokens(&[good, bad, silent]).unwrap_err().0;
        assert!(message.ends_with("bad, silent"), "{message}");
    }

    #[test]
    fn a_report_is_written_with_its_setting() {
        let folder = crate::project::scratch("bench");
        let report = Json::parse(r#"{"name": "a/b c", "speed": 1.5}"#).unwrap();
        write(&folder, &report, &setting(&Project::here().unwrap()).unwrap()).unwrap();
        let text = std::fs::read_to_string(folder.join("a-b-c.json")).unwrap();
        let written = Json::parse(&text).unwrap();
        assert_eq!(written.number(&["speed"]), Some(1.5));
        assert_eq!(written.str("mlx"), Some("0.32.2"));
        for key in ["host", "revision", "cores", "processor", "uncommitted_changes"] {
            assert!(written.get(key).is_some(), "{key}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
