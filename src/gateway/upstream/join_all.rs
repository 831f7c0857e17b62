//! Waits for many futures at the same time.

use std::task::Poll;

/// Runs the futures at the same time, and returns their outputs in the same order.
pub(super) async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(move |context| {
        let mut is_pending = false;
        for (future, output) in &mut waiting {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        match is_pending {
            true => Poll::Pending,
            false => Poll::Ready(waiting.iter_mut().filter_map(|(_, output)| output.take()).collect()),
        }
    })
    .await
}
