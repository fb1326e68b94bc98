//! One program that is run, and the results read from what it prints.

use std::{
    fs::File,
    io::{BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::Context;

use crate::{
    TestResult, Tier, Verdict,
    lines::{Finished, Reader, Reads},
};

#[derive(Clone, Debug)]
pub struct Job {
    pub tier: Tier,
    name: String,
    program: String,
    args: Vec<String>,
    within: Option<PathBuf>,
    reads: Reads,
}

/// What came of a job.
pub struct Outcome {
    pub results: Vec<TestResult>,
    pub log: PathBuf,
}

impl Outcome {
    pub fn last_lines(&self, count: usize) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

impl Job {
    pub fn new(tier: Tier, name: &str, program: &str, args: &[&str], reads: Reads) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { tier, name: name.to_owned(), program: program.to_owned(), args, within: None, reads }
    }

    /// In this folder instead of the project's.
    pub fn within(mut self, folder: impl Into<PathBuf>) -> Self {
        self.within = Some(folder.into());
        self
    }

    /// Runs the program to its end. What it prints goes to a log; a program that ends badly without naming a test
    /// is itself the test that failed.
    pub fn run(self, logs: &Path) -> Outcome {
        let log = logs.join(format!("{}.log", self.name.replace("::", "-")));
        let began = Instant::now();
        let (mut results, ended) = match self.follow(&log) {
            Ok(followed) => followed,
            Err(error) => {
                // The log is where a person looks for the reason.
                let _ = std::fs::write(&log, format!("{error:#}\n"));
                (Vec::new(), false)
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        let told = results.iter().any(|test| test.result == Verdict::Failed);
        if self.reads == Reads::ExitCode || (!ended && !told) {
            let result = if ended { Verdict::Passed } else { Verdict::Failed };
            results.push(TestResult { tier: self.tier, name: self.name.clone(), result, seconds });
        }
        let failed = results.iter().filter(|test| test.result == Verdict::Failed).count();
        let mark = if failed == 0 { "ok    " } else { "FAILED" };
        println!(
            "{mark} {:>7.1} s  {:<12} {} ({} tests)",
            seconds,
            format!("{:?}", self.tier),
            self.name,
            results.len()
        );
        Outcome { results, log }
    }

    /// The results, and whether the program ended well.
    #[expect(clippy::disallowed_methods, reason = "the runner of tests starts the tests")]
    fn follow(&self, log: &Path) -> anyhow::Result<(Vec<TestResult>, bool)> {
        let file = File::create(log).with_context(|| format!("making {}", log.display()))?;
        let errors = file.try_clone().context("sharing the log")?;
        let mut command = Command::new(&self.program);
        // Errors are written for people; a backtrace of the harness buries them.
        command.args(&self.args).env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        if let Some(folder) = &self.within {
            command.current_dir(folder);
        }
        let mut child = command.spawn().with_context(|| format!("starting {}", self.program))?;
        let mut output = child.stdout.take().context("no output to read")?;
        let mut log = BufWriter::new(file);
        let mut reader = Reader::new(self.reads);
        let mut results = Vec::new();
        let mut bytes = [0; 8192];
        loop {
            let count = output.read(&mut bytes).context("reading its output")?;
            if count == 0 {
                break;
            }
            log.write_all(&bytes[..count]).and_then(|()| log.flush()).context("writing the log")?;
            for Finished { name, result, seconds } in
                reader.read(&String::from_utf8_lossy(&bytes[..count]), Instant::now())
            {
                let name = format!("{}::{name}", self.name);
                results.push(TestResult { tier: self.tier, name, result, seconds });
            }
        }
        Ok((results, child.wait().context("waiting for its end")?.success()))
    }
}

/// What a program prints, when it ends well.
#[expect(clippy::disallowed_methods, reason = "the runner of tests starts the tests")]
pub fn output(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let done = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let done = done.with_context(|| format!("starting {program}"))?;
    anyhow::ensure!(done.status.success(), "{program} {} ended with {}", args.join(" "), done.status);
    String::from_utf8(done.stdout).context("reading its output")
}

/// Whether a program of this name is on the PATH.
pub fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}
