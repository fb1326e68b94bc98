//! Reading what test programs print, piece by piece as it comes.

use std::{collections::HashMap, time::Instant};

use serde::Deserialize;

use crate::Verdict;

/// How results are read from a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The program is one test.
    ExitCode,
    /// Rust's test harness, one test at a time.
    Libtest,
    /// `go test -json`.
    GoTest,
}

/// Reads what one program prints.
pub enum Reader {
    ExitCode,
    Libtest(Libtest),
    GoTest(GoTest),
}

impl Reader {
    pub fn new(reads: Reads) -> Self {
        match reads {
            Reads::ExitCode => Self::ExitCode,
            Reads::Libtest => Self::Libtest(Libtest::default()),
            Reads::GoTest => Self::GoTest(GoTest::default()),
        }
    }

    /// The tests that have ended by the end of this piece of text.
    pub fn read(&mut self, text: &str, now: Instant) -> Vec<Finished> {
        match self {
            Self::ExitCode => Vec::new(),
            Self::Libtest(state) => state.read(text, now),
            Self::GoTest(state) => state.read(text),
        }
    }
}

/// A test that has ended.
#[derive(Debug, PartialEq)]
pub struct Finished {
    pub name: String,
    pub result: Verdict,
    pub seconds: f64,
}

/// Rust's harness with one thread prints `test NAME ... `, runs the test, and ends the line with the verdict.
#[derive(Default)]
pub struct Libtest {
    line: String,
    began: Option<Instant>,
}

impl Libtest {
    pub fn read(&mut self, text: &str, now: Instant) -> Vec<Finished> {
        let mut finished = Vec::new();
        for character in text.chars() {
            if character != '\n' {
                self.line.push(character);
                continue;
            }
            finished.extend(self.end_of_line(now));
            self.line.clear();
            self.began = None;
        }
        if self.began.is_none() && named(&self.line).is_some() {
            self.began = Some(now);
        }
        finished
    }

    fn end_of_line(&self, now: Instant) -> Option<Finished> {
        let (name, verdict) = named(&self.line)?;
        let result = match verdict.split([',', ' ']).next()? {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed,
            "ignored" => Verdict::Skipped,
            _ => return None,
        };
        let seconds = self.began.map_or(0.0, |began| (now - began).as_secs_f64());
        Some(Finished { name: name.trim_end_matches(" - should panic").to_owned(), result, seconds })
    }
}

/// Splits `test NAME ... VERDICT`; the verdict is empty while the test runs.
fn named(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.split_once(" ... ")
}

/// One JSON object a line.
#[derive(Default)]
pub struct GoTest {
    line: String,
    seen: HashMap<String, Verdict>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GoEvent {
    action: String,
    #[serde(default)]
    test: String,
    #[serde(default)]
    elapsed: f64,
}

impl GoTest {
    pub fn read(&mut self, text: &str) -> Vec<Finished> {
        self.line.push_str(text);
        let mut finished = Vec::new();
        while let Some(end) = self.line.find('\n') {
            let line: String = self.line.drain(..=end).collect();
            let Ok(GoEvent { action, test, elapsed }) = serde_json::from_str(&line) else { continue };
            let result = match action.as_str() {
                "pass" => Verdict::Passed,
                "fail" => Verdict::Failed,
                "skip" => Verdict::Skipped,
                _ => continue,
            };
            if !test.is_empty() && self.seen.insert(test.clone(), result).is_none() {
                finished.push(Finished { name: test, result, seconds: elapsed });
            }
        }
        finished
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_test_is_timed_from_its_name_to_its_verdict() {
        let (mut reader, start) = (Libtest::default(), Instant::now());
        assert_eq!(reader.read("\nrunning 3 tests\ntest a::b ... ", start), []);
        let finished = reader.read("ok\ntest c ... ", start + Duration::from_secs(2));
        assert_eq!(finished, [Finished { name: "a::b".into(), result: Verdict::Passed, seconds: 2.0 }]);
        let finished = reader.read("FAILED\ntest d ... ignored, why\n\n", start + Duration::from_secs(3));
        assert_eq!(finished[0], Finished { name: "c".into(), result: Verdict::Failed, seconds: 1.0 });
        assert_eq!((finished[1].name.as_str(), finished[1].result), ("d", Verdict::Skipped));
    }

    #[test]
    fn a_summary_is_not_a_test() {
        let mut reader = Libtest::default();
        assert_eq!(reader.read("test result: ok. 3 passed; 0 failed\n", Instant::now()), []);
    }

    #[test]
    fn go_events_are_read_across_pieces() {
        let mut reader = GoTest::default();
        assert_eq!(reader.read(r#"{"Action":"run","Test":"T"}"#), []);
        let finished = reader.read("\n{\"Action\":\"pass\",\"Test\":\"T\",\"Elapsed\":0.5}\n{\"Action\":\"pass\"}\n");
        assert_eq!(finished, [Finished { name: "T".into(), result: Verdict::Passed, seconds: 0.5 }]);
    }
}
