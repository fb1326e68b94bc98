//! One line per step, with the seconds since the program began.

use std::{
    fmt::Display,
    sync::LazyLock,
    time::{Duration, Instant},
};

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The clock of the lines begins with the first of them; a program that wants it earlier calls this first.
pub fn begin() {
    LazyLock::force(&BEGAN);
}

/// Prints a step that is done or about to be done. To stderr, so that the output of a command stays its own.
pub fn say(what: impl Display) {
    eprintln!("[{:5.1}s] {what}", BEGAN.elapsed().as_secs_f64());
}

/// Waits for something to come true, looking at it again and again.
pub(crate) fn wait_until<T, E>(
    limit: Duration,
    pause: Duration,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if began.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(pause);
    }
}
