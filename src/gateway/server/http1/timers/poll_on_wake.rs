//! Polls a future only if its own waker has been called since the last poll.
//!
//! A task that waits for several futures polls all of them when one of them wakes it. Most of them have not changed,
//! and to poll them would take locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Remembers whether a future has woken its task since the future was last polled.
#[derive(Debug, Default)]
pub(crate) struct PollOnWake(Option<(Arc<WakeFlag>, Waker)>);

#[derive(Debug)]
struct WakeFlag {
    woken: AtomicBool,
    task: Waker,
}

impl PollOnWake {
    /// Polls the future by `poll`. Returns `Pending` without polling if the future has not woken the task. A caller
    /// that polls the future in another way must call [`PollOnWake::rearm`].
    pub(crate) fn poll<T>(&mut self, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let current = self.0.take().filter(|(flag, _)| flag.task.will_wake(cx.waker()));
        let (flag, waker) = self.0.insert(current.unwrap_or_else(|| {
            let flag = Arc::new(WakeFlag { woken: AtomicBool::new(true), task: cx.waker().clone() });
            (Arc::clone(&flag), Waker::from(flag))
        }));
        if !flag.woken.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // The flag is cleared before the poll, so that a wake during the poll is not lost.
        flag.woken.swap(false, Ordering::AcqRel);
        let polled = poll(&mut Context::from_waker(waker));
        if polled.is_ready() {
            // A future that was ready never wakes the task again, so the next poll must not wait for a wake.
            flag.woken.store(true, Ordering::Release);
        }
        polled
    }

    /// Makes the next call of [`PollOnWake::poll`] poll its future. Needed when other code has polled the future, or
    /// when the next call polls a different future.
    pub(crate) fn rearm(&self) {
        if let Some((flag, _)) = &self.0 {
            flag.woken.store(true, Ordering::Release);
        }
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn task() -> (Arc<Task>, Waker) {
        let task = Arc::new(Task::default());
        (Arc::clone(&task), Waker::from(task))
    }

    /// Polls a future that returns `answer`. Also returns the waker of the poll; `None` if the future was not polled.
    fn poll(poll_on_wake: &mut PollOnWake, by: &Waker, answer: Poll<()>) -> (Poll<()>, Option<Waker>) {
        let mut given = None;
        let polled = poll_on_wake.poll(&mut Context::from_waker(by), |cx| {
            given = Some(cx.waker().clone());
            answer
        });
        (polled, given)
    }

    #[test]
    fn a_future_is_polled_again_only_after_it_has_woken_the_task() {
        let (woken, task) = task();
        let mut poll_on_wake = PollOnWake::default();
        let (first, flag) = poll(&mut poll_on_wake, &task, Poll::Pending);
        assert!(first.is_pending());
        let flag = flag.expect("not polled at first");
        for _ in 0..3 {
            // The future would be ready, but it is not polled.
            let (polled, given) = poll(&mut poll_on_wake, &task, Poll::Ready(()));
            assert!(polled.is_pending() && given.is_none());
        }
        flag.wake_by_ref();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        let (polled, given) = poll(&mut poll_on_wake, &task, Poll::Pending);
        assert!(polled.is_pending() && given.is_some());
        flag.wake();
        let (polled, _) = poll(&mut poll_on_wake, &task, Poll::Ready(()));
        assert!(polled.is_ready());
        // A future that was ready is polled again.
        assert!(poll(&mut poll_on_wake, &task, Poll::Pending).1.is_some());
    }

    #[test]
    fn a_wake_during_the_poll_is_not_lost() {
        let (_, task) = task();
        let mut poll_on_wake = PollOnWake::default();
        let polled: Poll<()> = poll_on_wake.poll(&mut Context::from_waker(&task), |cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert!(poll(&mut poll_on_wake, &task, Poll::Ready(())).0.is_ready());
    }

    #[test]
    fn another_task_is_woken_and_another_future_is_polled() {
        let ((first, one), (second, other)) = (task(), task());
        let mut poll_on_wake = PollOnWake::default();
        assert!(poll(&mut poll_on_wake, &one, Poll::Pending).1.is_some());
        let (_, flag) = poll(&mut poll_on_wake, &other, Poll::Pending);
        flag.expect("not polled by the other task").wake();
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
        assert!(poll(&mut poll_on_wake, &other, Poll::Pending).1.is_some());
        assert!(poll(&mut poll_on_wake, &other, Poll::Pending).1.is_none());
        poll_on_wake.rearm();
        assert!(poll(&mut poll_on_wake, &other, Poll::Pending).1.is_some());
    }

    /// The last wake is never lost, although the two threads share only the flag.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "waits in real time")]
    fn no_wake_of_another_thread_is_lost() {
        struct Thread(thread::Thread);
        impl Wake for Thread {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let task = Waker::from(Arc::new(Thread(thread::current())));
        let (send, sent) = channel::<(Arc<AtomicBool>, Waker)>();
        let caller = thread::spawn(move || {
            for (done, flag) in sent {
                done.store(true, Ordering::Release);
                flag.wake();
            }
        });
        let mut poll_on_wake = PollOnWake::default();
        for _ in 0..20_000 {
            let done = Arc::new(AtomicBool::new(false));
            let mut polled = Poll::Pending;
            let mut registered = false;
            while polled.is_pending() {
                polled = poll_on_wake.poll(&mut Context::from_waker(&task), |cx| {
                    if !std::mem::replace(&mut registered, true) {
                        send.send((Arc::clone(&done), cx.waker().clone())).unwrap();
                    }
                    if done.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
                });
                if polled.is_pending() {
                    let before = std::time::Instant::now();
                    thread::park_timeout(Duration::from_secs(5));
                    assert!(before.elapsed() < Duration::from_secs(5), "a wake was lost");
                }
            }
        }
        drop(send);
        caller.join().unwrap();
    }
}
