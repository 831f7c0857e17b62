//! Knows when nothing has been said for too long between two requests, and when the process leaves meanwhile.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::poll_on_wake::PollOnWake;
use super::reusable_timer::ReusableTimer;
use crate::base::time::{Clock, Timestamp};

/// What ends a connection between requests. Both are asked for at every request, and live as long as the connection.
pub struct IdleTimeout<L> {
    leaving: L,
    left: PollOnWake,
    alarm: ReusableTimer,
}

impl<L: Future<Output = ()> + Unpin> IdleTimeout<L> {
    pub fn new(leaving: L) -> IdleTimeout<L> {
        IdleTimeout { leaving, left: PollOnWake::default(), alarm: ReusableTimer::coarse() }
    }

    /// Ready once the process leaves, or when it is `end`. Not to be asked again after that.
    pub fn poll(&mut self, end: Timestamp, clock: &Clock, cx: &mut Context<'_>) -> Poll<()> {
        let leaving = Pin::new(&mut self.leaving);
        if self.left.poll(cx, |cx| leaving.poll(cx)).is_ready() {
            return Poll::Ready(());
        }
        self.alarm.poll(end, clock, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use pingora::server::ShutdownWatch;
    use tokio::sync::watch;
    use tokio::task::yield_now;

    use super::*;

    const FAR: Timestamp = Timestamp(3_600_000_000);

    fn quiet(news: &ShutdownWatch) -> IdleTimeout<impl Future<Output = ()> + Unpin + Send + use<>> {
        let mut leaving = news.clone();
        IdleTimeout::new(Box::pin(async move { drop(leaving.wait_for(|leaving| *leaving).await) }))
    }

    async fn settle() {
        for _ in 0..20 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn whoever_has_asked_often_hears_who_leaves_and_nothing_else() {
        let (leave, news) = watch::channel(false);
        let mut quiet = quiet(&news);
        let asking = tokio::spawn(async move {
            let clock = Clock::manual(Timestamp(0));
            for _ in 0..3 {
                assert!(poll_fn(|cx| Poll::Ready(quiet.poll(FAR, &clock, cx))).await.is_pending());
            }
            poll_fn(|cx| quiet.poll(FAR, &clock, cx)).await;
        });
        settle().await;
        leave.send(false).unwrap();
        settle().await;
        assert!(!asking.is_finished());
        leave.send(true).unwrap();
        tokio::time::timeout(Duration::from_secs(5), asking).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_task_that_asked_last_is_woken() {
        let (leave, news) = watch::channel(false);
        let mut quiet = quiet(&news);
        let first = tokio::spawn(async move {
            let clock = Clock::manual(Timestamp(0));
            assert!(poll_fn(|cx| Poll::Ready(quiet.poll(FAR, &clock, cx))).await.is_pending());
            quiet
        });
        let mut quiet = first.await.unwrap();
        let second = tokio::spawn(async move {
            let clock = Clock::manual(Timestamp(0));
            poll_fn(|cx| quiet.poll(FAR, &clock, cx)).await;
        });
        settle().await;
        leave.send(true).unwrap();
        tokio::time::timeout(Duration::from_secs(5), second).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_comes_when_the_process_leaves_already_is_told_so() {
        let (leave, news) = watch::channel(false);
        leave.send(true).unwrap();
        let clock = Clock::manual(Timestamp(0));
        assert!(poll_fn(|cx| Poll::Ready(quiet(&news).poll(FAR, &clock, cx))).await.is_ready());
    }
}
