//! Asks what a task waits for only when it has called.
//!
//! A task that waits for several things asks each of them whenever one has called, and a connection does so several times for
//! every request. Most have not: to see that here is one look, to ask them is a lock and a list each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// For one thing that is waited for.
#[derive(Debug, Default)]
pub struct PollOnWake(Option<(Arc<WakeFlag>, Waker)>);

#[derive(Debug)]
struct WakeFlag {
    rung: AtomicBool,
    task: Waker,
}

impl PollOnWake {
    /// What it answers now. Who asks it past this has to say so with [`PollOnWake::rearm`].
    pub fn poll<T>(&mut self, cx: &mut Context<'_>, ask: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let kept = self.0.take().filter(|(bell, _)| bell.task.will_wake(cx.waker()));
        let (bell, waker) = self.0.insert(kept.unwrap_or_else(|| {
            let bell = Arc::new(WakeFlag { rung: AtomicBool::new(true), task: cx.waker().clone() });
            (Arc::clone(&bell), Waker::from(bell))
        }));
        if !bell.rung.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // Before it is asked: a call that comes meanwhile counts.
        bell.rung.swap(false, Ordering::AcqRel);
        let answer = ask(&mut Context::from_waker(waker));
        if answer.is_ready() {
            // What has answered calls nobody.
            bell.rung.store(true, Ordering::Release);
        }
        answer
    }

    /// It calls somebody else now, or is another thing.
    pub fn rearm(&self) {
        if let Some((bell, _)) = &self.0 {
            bell.rung.store(true, Ordering::Release);
        }
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
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

    /// Polls once, for something that would answer so; and the waker with which it was asked, if it was.
    fn poll(on_call: &mut PollOnWake, by: &Waker, answer: Poll<()>) -> (Poll<()>, Option<Waker>) {
        let mut given = None;
        let polled = on_call.poll(&mut Context::from_waker(by), |cx| {
            given = Some(cx.waker().clone());
            answer
        });
        (polled, given)
    }

    #[test]
    fn what_has_not_called_is_not_asked_again_and_what_has_is() {
        let (woken, task) = task();
        let mut on_call = PollOnWake::default();
        let (first, bell) = poll(&mut on_call, &task, Poll::Pending);
        assert!(first.is_pending());
        let bell = bell.expect("was not asked at first");
        for _ in 0..3 {
            // It would answer, had it been asked.
            let (polled, given) = poll(&mut on_call, &task, Poll::Ready(()));
            assert!(polled.is_pending() && given.is_none());
        }
        bell.wake_by_ref();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        let (polled, given) = poll(&mut on_call, &task, Poll::Pending);
        assert!(polled.is_pending() && given.is_some());
        bell.wake();
        let (polled, _) = poll(&mut on_call, &task, Poll::Ready(()));
        assert!(polled.is_ready());
        // What has answered is asked anew.
        assert!(poll(&mut on_call, &task, Poll::Pending).1.is_some());
    }

    #[test]
    fn a_call_that_comes_while_it_is_asked_is_not_lost() {
        let (_, task) = task();
        let mut on_call = PollOnWake::default();
        let polled: Poll<()> = on_call.poll(&mut Context::from_waker(&task), |cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert!(poll(&mut on_call, &task, Poll::Ready(())).0.is_ready());
    }

    #[test]
    fn another_task_is_called_and_what_is_another_thing_is_asked() {
        let ((first, one), (second, other)) = (task(), task());
        let mut on_call = PollOnWake::default();
        assert!(poll(&mut on_call, &one, Poll::Pending).1.is_some());
        let (_, bell) = poll(&mut on_call, &other, Poll::Pending);
        bell.expect("was not asked by the other").wake();
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
        assert!(poll(&mut on_call, &other, Poll::Pending).1.is_some());
        assert!(poll(&mut on_call, &other, Poll::Pending).1.is_none());
        on_call.rearm();
        assert!(poll(&mut on_call, &other, Poll::Pending).1.is_some());
    }

    /// Two threads, with nothing between them but this: the last call is heard, whenever it comes.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "waits in real time")]
    fn no_call_of_another_thread_is_lost() {
        struct Thread(thread::Thread);
        impl Wake for Thread {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let task = Waker::from(Arc::new(Thread(thread::current())));
        let (send, sent) = channel::<(Arc<AtomicBool>, Waker)>();
        let caller = thread::spawn(move || {
            for (done, bell) in sent {
                done.store(true, Ordering::Release);
                bell.wake();
            }
        });
        let mut on_call = PollOnWake::default();
        for _ in 0..20_000 {
            let done = Arc::new(AtomicBool::new(false));
            let mut polled = Poll::Pending;
            let mut asked = false;
            while polled.is_pending() {
                polled = on_call.poll(&mut Context::from_waker(&task), |cx| {
                    if !std::mem::replace(&mut asked, true) {
                        send.send((Arc::clone(&done), cx.waker().clone())).unwrap();
                    }
                    if done.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
                });
                if polled.is_pending() {
                    let before = std::time::Instant::now();
                    thread::park_timeout(Duration::from_secs(5));
                    assert!(before.elapsed() < Duration::from_secs(5), "a call was lost");
                }
            }
        }
        drop(send);
        caller.join().unwrap();
    }
}
