//! What a person reads while the story runs: a sentence and its time, and the
//! command that shows the same.

use std::time::Instant;

/// Tells the story on stdout.
pub struct Tell {
    began: Instant,
    step: Instant,
    /// How long each step took, in seconds, for the summary at the end.
    steps: Vec<(String, f64)>,
}

impl Default for Tell {
    fn default() -> Self {
        Self { began: Instant::now(), step: Instant::now(), steps: Vec::new() }
    }
}

impl Tell {
    /// A new step begins.
    pub fn step(&mut self, sentence: &str) {
        self.close();
        println!("\n[{:6.1} s] ── {sentence}", self.began.elapsed().as_secs_f64());
        self.steps.push((sentence.to_owned(), 0.0));
        self.step = Instant::now();
    }

    /// Something that was seen to be true.
    pub fn seen(&self, sentence: &str) {
        println!("[{:6.1} s]    ✓ {sentence}", self.began.elapsed().as_secs_f64());
    }

    /// A command and what it prints.
    pub fn shown(&self, command: &str, output: &str) {
        println!("           $ {command}");
        for line in output.lines() {
            println!("             {line}");
        }
    }

    /// How long each step took.
    pub fn summary(&mut self) {
        self.close();
        println!("\n{:>9}  step", "seconds");
        for (sentence, seconds) in &self.steps {
            println!("{seconds:>9.1}  {sentence}");
        }
        println!("{:>9.1}  in all", self.began.elapsed().as_secs_f64());
    }

    fn close(&mut self) {
        if let Some((_, seconds)) = self.steps.last_mut().filter(|(_, seconds)| *seconds == 0.0) {
            *seconds = self.step.elapsed().as_secs_f64();
        }
    }
}
