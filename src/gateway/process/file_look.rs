//! Checks watched files on a separate thread, so that a file system that does not respond blocks only this thread.
//!
//! The reloader waits briefly for a check, and looks for its result again at the next interval.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::file_fingerprint::Trigger;
use base::interval::fixed_interval;
use base::time::{Clock, Micros, Timestamp};

/// How long the reloader waits for a check before it continues with other files.
const MOMENT: Duration = Duration::from_millis(200);
/// The time after which a running check is reported.
const DEADLINE: Duration = Duration::from_secs(10);

/// Checks watched files on another thread, with at most one check under way. `W` is the watch, and `C` is the result of a
/// check.
#[derive(Debug)]
pub(crate) struct FileLook<W, C> {
    /// The watch; `None` while a check is under way.
    watch: Option<W>,
    under_way: Option<UnderWay<W, C>>,
    /// Whether an operator has asked for a reload during a check. Another check then follows.
    asked: bool,
    /// The time at which the last check ended.
    ended: Timestamp,
}

#[derive(Debug)]
struct UnderWay<W, C> {
    task: JoinHandle<(W, C)>,
    begun: Timestamp,
    overdue: bool,
}

/// The progress of a check of files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LookOutcome<C> {
    /// The check has ended. `late` is true if the check was reported as overdue before.
    Found { change: C, late: bool },
    /// The check is not finished.
    UnderWay,
    /// The check is not finished after this time, and must be reported.
    Overdue(Micros),
}

impl<W: Send + 'static, C: Send + 'static> FileLook<W, C> {
    /// Begins with no check under way. The files of `watch` were read at the time `now`.
    pub(crate) fn new(watch: W, now: Timestamp) -> FileLook<W, C> {
        FileLook { watch: Some(watch), under_way: None, asked: false, ended: now }
    }

    /// Returns the watch, or `None` while a check is under way.
    pub(crate) fn watch(&self) -> Option<&W> {
        self.watch.as_ref()
    }

    /// Returns the time at which the last check ended.
    pub(crate) fn ended(&self) -> Timestamp {
        self.ended
    }

    /// Begins a check unless one is under way, and waits briefly for the end of the check.
    pub(crate) async fn look(
        &mut self,
        trigger: Trigger,
        clock: &Clock,
        look: impl FnOnce(&mut W, Trigger) -> C + Send + 'static,
    ) -> LookOutcome<C> {
        match self.watch.take() {
            Some(mut watch) => {
                let asked = std::mem::take(&mut self.asked);
                let trigger = if asked { Trigger::Operator } else { trigger };
                let task = tokio::task::spawn_blocking(move || {
                    let change = look(&mut watch, trigger);
                    (watch, change)
                });
                self.under_way = Some(UnderWay { task, begun: clock.now(), overdue: false });
            }
            None => self.asked |= trigger == Trigger::Operator,
        }
        let Some(under_way) = &mut self.under_way else { return LookOutcome::UnderWay };
        let Ok(ended) = tokio::time::timeout(MOMENT, &mut under_way.task).await else {
            let taken = clock.now().since(under_way.begun);
            if under_way.overdue || taken < fixed_interval("look", DEADLINE).into() {
                return LookOutcome::UnderWay;
            }
            under_way.overdue = true;
            return LookOutcome::Overdue(taken);
        };
        let late = under_way.overdue;
        self.under_way = None;
        // After a panic, which was logged, the watch is lost: these files are no longer checked.
        let Ok((watch, change)) = ended else { return LookOutcome::UnderWay };
        (self.watch, self.ended) = (Some(watch), clock.wall());
        LookOutcome::Found { change, late }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Repeats the look until it returns something other than `UnderWay`.
    async fn ends(look: &mut FileLook<u32, Trigger>, clock: &Clock, trigger: Trigger) -> LookOutcome<Trigger> {
        loop {
            let looked = look.look(trigger, clock, |_, trigger| trigger).await;
            if looked != LookOutcome::UnderWay {
                return looked;
            }
        }
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_reported_once_and_nothing_waits_for_it() {
        let clock = Clock::manual(Timestamp(1_000_000));
        let mut look = FileLook::new(7, clock.wall());
        let (go, gone) = mpsc::channel::<()>();
        let hanging = move |_: &mut u32, trigger| {
            gone.recv().unwrap();
            trigger
        };
        assert_eq!(look.look(Trigger::Interval, &clock, hanging).await, LookOutcome::UnderWay);
        assert_eq!(look.watch(), None);
        clock.set(Timestamp(10_999_999));
        let never = |_: &mut u32, _| panic!("a second look at the same time");
        assert_eq!(look.look(Trigger::Interval, &clock, never).await, LookOutcome::UnderWay);
        clock.set(Timestamp(11_000_000));
        assert_eq!(look.look(Trigger::Interval, &clock, never).await, LookOutcome::Overdue(Micros(10_000_000)));
        assert_eq!(look.look(Trigger::Operator, &clock, never).await, LookOutcome::UnderWay);
        assert_eq!(look.ended(), Timestamp(1_000_000));
        go.send(()).unwrap();
        let first = ends(&mut look, &clock, Trigger::Interval).await;
        assert_eq!(first, LookOutcome::Found { change: Trigger::Interval, late: true });
        assert_eq!((look.watch(), look.ended()), (Some(&7), Timestamp(11_000_000)));
        // The operator asked after the first check had begun, so a second check follows.
        let asked = ends(&mut look, &clock, Trigger::Interval).await;
        assert_eq!(asked, LookOutcome::Found { change: Trigger::Operator, late: false });
        let last = ends(&mut look, &clock, Trigger::Interval).await;
        assert_eq!(last, LookOutcome::Found { change: Trigger::Interval, late: false });
    }
}
