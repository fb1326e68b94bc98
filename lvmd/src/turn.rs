//! One change at a time for each group and each volume, and each change runs to its end.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::sync::OwnedMutexGuard;

/// What changes are at work on. `Ord`er of taking: a volume before its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// One look at a time: it reads every device. It changes nothing.
    Look,
    /// One plan at a time.
    Node,
    /// The group of a DeviceClass.
    Group(String),
    Volume(String),
}

#[derive(Clone, Debug, Default)]
pub struct Turns {
    all: Arc<Mutex<HashMap<Subject, Weak<tokio::sync::Mutex<()>>>>>,
    running: Arc<Mutex<All>>,
}

#[derive(Debug, Default)]
struct All {
    /// What is running, and since when.
    now: HashMap<u64, (Subject, String, Instant)>,
    /// When the last change ended.
    ended: Option<Instant>,
}

#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    #[error("{what}: another change is at work on it")]
    Busy { what: String },
    #[error("{what}: still running after {} s; it goes on", .limit.as_secs())]
    Slow { what: String, limit: Duration },
    #[error("{what}: it failed in a way that must not be, report it")]
    Panicked { what: String, source: tokio::task::JoinError },
}

impl Turns {
    /// The turn of `subject`, waited for.
    pub async fn wait(&self, subject: Subject) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, lock| lock.strong_count() > 0);
            match all.get(&subject).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::new(tokio::sync::Mutex::new(()));
                    all.insert(subject, Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }

    /// Runs `change` when its turn has come, to its end, even when the caller goes away: a gRPC server drops the
    /// handler of a call that its client gave up on, and an LVM command must not lose its turn half-way. The caller
    /// waits at most `limit`; the turn stays taken as long as the change runs.
    pub async fn take<T: Send + 'static>(
        &self,
        subject: Subject,
        what: String,
        limit: Duration,
        change: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, TurnError> {
        let start = Instant::now();
        let Ok(turn) = tokio::time::timeout(limit, self.wait(subject.clone())).await else {
            return Err(TurnError::Busy { what });
        };
        let running = Running::new(self, &subject, &what);
        let task = tokio::spawn(async move {
            let _held = (turn, running);
            change.await
        });
        match tokio::time::timeout(limit.saturating_sub(start.elapsed()), task).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(source)) => Err(TurnError::Panicked { what, source }),
            Err(_) => Err(TurnError::Slow { what, limit }),
        }
    }

    /// What has run the longest, if that is longer than `limit`.
    pub fn overdue(&self, limit: Duration) -> Option<(String, Duration)> {
        let all = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = all.now.values().map(|(_, what, since)| (what, since.elapsed())).max_by_key(|(_, time)| *time)?;
        (longest.1 >= limit).then(|| (longest.0.clone(), longest.1))
    }

    /// Ends when nothing is running any more.
    pub async fn idle(&self) {
        while self.overdue(Duration::ZERO).is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether a change is running, or has ended no longer than `since` ago.
    pub fn changed_within(&self, since: Duration) -> bool {
        let all = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        all.now.values().any(|(subject, ..)| *subject != Subject::Look)
            || all.ended.is_some_and(|end| end.elapsed() < since)
    }
}

/// An entry in the list of what is running.
struct Running {
    turns: Turns,
    number: u64,
}

impl Running {
    fn new(turns: &Turns, subject: &Subject, what: &str) -> Self {
        let mut all = turns.running.lock().unwrap_or_else(PoisonError::into_inner);
        let number = (0..).find(|number| !all.now.contains_key(number)).unwrap_or(u64::MAX);
        all.now.insert(number, (subject.clone(), what.to_owned(), Instant::now()));
        Self { turns: turns.clone(), number }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut all = self.turns.running.lock().unwrap_or_else(PoisonError::into_inner);
        if all.now.remove(&self.number).is_some_and(|(subject, ..)| subject != Subject::Look) {
            all.ended = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(10);

    fn group() -> Subject {
        Subject::Group("fast".to_owned())
    }

    #[tokio::test]
    async fn a_change_runs_to_its_end_and_keeps_its_turn_when_its_caller_goes_away() {
        let turns = Turns::default();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let change = async move {
            let _ = ended.await;
            7
        };
        let slow = turns.take(group(), "a".to_owned(), SHORT, change).await;
        assert!(matches!(slow, Err(TurnError::Slow { .. })));
        assert!(turns.overdue(SHORT).is_some_and(|(what, _)| what == "a"));
        let busy = turns.take(group(), "b".to_owned(), SHORT, async {}).await;
        assert!(matches!(busy, Err(TurnError::Busy { .. })));
        // Another group does not wait.
        assert!(turns.take(Subject::Look, "c".to_owned(), LONG, async {}).await.is_ok());
        end.send(()).unwrap();
        assert!(turns.take(group(), "d".to_owned(), LONG, async {}).await.is_ok());
        assert!(turns.overdue(Duration::ZERO).is_none());
    }

    #[tokio::test]
    async fn changes_of_one_group_never_overlap() {
        let turns = Turns::default();
        let inside = Arc::new(AtomicUsize::new(0));
        let all = (0..20).map(|_| {
            let (turns, inside) = (turns.clone(), inside.clone());
            tokio::spawn(async move {
                let change = async move {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                };
                turns.take(group(), "x".to_owned(), LONG, change).await
            })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.unwrap().unwrap();
        }
    }
}
