//! `make test`: builds, runs every tier, times each test, names the log of what
//! failed, and writes `target/report/tests.json`.
//!
//! In reading order: `job` (what is run, and how its outcome becomes results),
//! `lines` (reading what test programs print), this file (which jobs there are,
//! and in which order).

mod job;
mod lines;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::{
    job::{Job, Outcome},
    lines::Reads,
};

/// Runs the tests of Stowage.
#[derive(Parser, Debug)]
struct Args {
    /// Only these tiers: lint, unit, real-lvm, proto, control-plane, node, nodes.
    #[arg(long = "tier")]
    tiers: Vec<Tier>,
    /// Where reports and logs are written.
    #[arg(long, default_value = "target/report")]
    report: PathBuf,
}

/// Where a test stands says what it needs.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Tier {
    /// Formatting, clippy, licences.
    Lint,
    /// In the crates; needs nothing.
    Unit,
    /// Root and loop devices.
    RealLvm,
    /// Go: the wire interfaces against the upstream ones.
    Proto,
    /// A real API server.
    ControlPlane,
    /// Virtual machines.
    Node,
    /// Virtual machines with a real kubelet.
    Nodes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// One line of `tests.json`.
#[derive(Clone, Debug, Serialize)]
struct TestResult {
    tier: Tier,
    name: String,
    result: Verdict,
    seconds: f64,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let began = Instant::now();
    let wanted = |tier: Tier| args.tiers.is_empty() || args.tiers.contains(&tier);
    let logs = args.report.join("logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("making {}", logs.display()))?;

    let mut outcomes = Vec::new();
    println!("building what the tests need");
    job::output("cargo", &["build", "--quiet", "-p", "rig"])?;
    let first = prepare(&wanted);
    outcomes.extend(run(first, &logs, 2));
    // What is ill formatted can still be tested; what is not built can not.
    let is_built = |test: &TestResult| test.result == Verdict::Passed || test.tier == Tier::Lint;
    if outcomes.iter().flat_map(|outcome| &outcome.results).all(is_built) {
        let (light, heavy) =
            programs()?.into_iter().filter(|job| wanted(job.tier)).partition(|job| job.tier < Tier::ControlPlane);
        outcomes.extend(run(light, &logs, 2));
        // Each of these uses both cores by itself.
        outcomes.extend(run(heavy, &logs, 1));
    }
    summarize(&outcomes, began.elapsed(), &args.report)
}

/// What is built or checked before any test program can run.
fn prepare(wanted: &impl Fn(Tier) -> bool) -> Vec<Job> {
    let cargo = |tier, name: &str, args: &[&str]| Job::new(tier, name, "cargo", args, Reads::ExitCode);
    let machines = wanted(Tier::ControlPlane) || wanted(Tier::Node) || wanted(Tier::Nodes);
    let mut jobs = Vec::new();
    if wanted(Tier::Lint) {
        jobs.push(cargo(Tier::Lint, "rustfmt", &["fmt", "--all", "--check"]));
    }
    if machines {
        // Not by `cargo run`, which would wait until all tests are built; Go needs no such lock.
        jobs.push(Job::new(Tier::Unit, "build_of_upstream_parts", "target/debug/rig", &["build"], Reads::ExitCode));
    }
    jobs.push(cargo(Tier::Unit, "build_of_all_programs", &["build", "--workspace", "--quiet"]));
    jobs.push(cargo(Tier::Unit, "build_of_all_tests", &["test", "--workspace", "--no-run", "--quiet"]));
    if wanted(Tier::Nodes) {
        jobs.push(Job::new(Tier::Unit, "build_of_the_image", "make", &["-s", "image"], Reads::ExitCode));
    }
    if wanted(Tier::Lint) {
        jobs.push(cargo(
            Tier::Lint,
            "clippy",
            &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"],
        ));
        if job::is_installed("cargo-deny") {
            jobs.push(cargo(Tier::Lint, "cargo_deny", &["deny", "check", "licenses", "bans", "sources"]));
        }
    }
    if wanted(Tier::Proto) {
        jobs.push(
            Job::new(Tier::Proto, "proto", "go", &["test", "-json", "./..."], Reads::GoTest).within("tests/proto"),
        );
    }
    jobs
}

/// A test program as `cargo test --no-run --message-format=json` names it.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    target: Target,
    profile: Profile,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Every test program of the workspace, with the tier that its place says.
fn programs() -> anyhow::Result<Vec<Job>> {
    let listed = job::output("cargo", &["test", "--workspace", "--no-run", "--quiet", "--message-format=json"])?;
    let mut jobs = Vec::new();
    for line in listed.lines().filter(|line| line.contains(r#""reason":"compiler-artifact""#)) {
        let Artifact { executable, target, profile, manifest_path } =
            serde_json::from_str(line).context("reading cargo's list of programs")?;
        let (Some(program), true) = (executable, profile.test) else { continue };
        let Some(package) = manifest_path.parent() else { continue };
        let crate_name = package.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{crate_name}::{}", target.name);
        let program = program.to_string_lossy().into_owned();
        // One at a time in a program: the line that names a test comes before it runs, which is how it is timed.
        let job = Job::new(tier_of(&target.src_path), &name, &program, &["--test-threads=1"], Reads::Libtest);
        jobs.push(job.within(package));
    }
    jobs.sort_by_key(|job| job.tier);
    Ok(jobs)
}

/// The tier of a test program, by its place (DESIGN §9).
fn tier_of(source: &Path) -> Tier {
    let source = source.to_string_lossy();
    if source.ends_with("lvmd/tests/real_lvm.rs") {
        Tier::RealLvm
    } else if source.contains("/tests/node/") {
        Tier::Node
    } else if source.ends_with("/tests/cluster/tests/main_job.rs") || source.contains("/tests/rig/tests/") {
        Tier::Nodes
    } else if source.contains("/tests/cluster/tests/") {
        Tier::ControlPlane
    } else {
        Tier::Unit
    }
}

/// Runs the jobs, `side_by_side` at a time, in their order, and says how each ended.
fn run(jobs: Vec<Job>, logs: &Path, side_by_side: usize) -> Vec<Outcome> {
    let waiting = Arc::new(Mutex::new(jobs.into_iter()));
    let workers: Vec<_> = (0..side_by_side)
        .map(|_| {
            let (waiting, logs) = (Arc::clone(&waiting), logs.to_owned());
            thread::spawn(move || {
                let next = || waiting.lock().ok().and_then(|mut jobs| jobs.next());
                std::iter::from_fn(next).map(|job| job.run(&logs)).collect::<Vec<_>>()
            })
        })
        .collect();
    workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
}

fn summarize(outcomes: &[Outcome], took: Duration, report: &Path) -> anyhow::Result<ExitCode> {
    let results: Vec<&TestResult> = outcomes.iter().flat_map(|outcome| &outcome.results).collect();
    std::fs::write(report.join("tests.json"), serde_json::to_string_pretty(&results)?).context("writing tests.json")?;
    let count = |verdict| results.iter().filter(|test| test.result == verdict).count();

    println!("\n{:<14} {:>6} {:>9}", "tier", "tests", "seconds");
    let mut tiers: Vec<Tier> = results.iter().map(|test| test.tier).collect();
    tiers.sort();
    tiers.dedup();
    for tier in tiers {
        let of_tier: Vec<_> = results.iter().filter(|test| test.tier == tier).collect();
        let seconds: f64 = of_tier.iter().map(|test| test.seconds).sum();
        println!("{:<14} {:>6} {seconds:>9.1}", format!("{tier:?}"), of_tier.len());
    }
    let mut slow = results.clone();
    slow.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("\nslowest:");
    for test in slow.iter().take(8) {
        println!("  {:>7.1} s  {}", test.seconds, test.name);
    }
    for outcome in outcomes {
        for test in outcome.results.iter().filter(|test| test.result != Verdict::Passed) {
            println!("\n{:?}: {} ({:?}); log: {}", test.result, test.name, test.tier, outcome.log.display());
            println!("{}", outcome.last_lines(60));
        }
    }
    let (passed, failed, skipped) = (count(Verdict::Passed), count(Verdict::Failed), count(Verdict::Skipped));
    println!("\nreport: {}; {:.0} s in all", report.join("tests.json").display(), took.as_secs_f64());
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    // A test that did not run proves nothing.
    Ok(if failed == 0 && skipped == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
