//! Defines the observer of an upstream's response. It sees the response while it passes, for example to read a cost.

use std::fmt;

use super::fault::Fault;
use super::head_edit::HeadEdit;

/// An observer of the upstream's response to one request. It is shown the response before the gateway edits it. It
/// neither changes nor delays the response. Only the response that is passed on is shown: no interim response, and
/// nothing of an attempt that is followed by another.
///
/// The calls have this order: `head`, any number of `data`, `trailers`, `end`. Only `end` always comes, and it comes once.
///
/// There are two observers: one reads costs, and one records responses for tests.
pub(super) trait ResponseObserver: fmt::Debug + Send + Sync {
    /// Shows the head that is passed on. A response with the status 101 ends with its head, because the bytes of a tunnel
    /// are no response.
    fn head(&mut self, status: u16, fields: &HeadEdit<'_>);

    /// Shows the next bytes of the body, without the sizes of chunks. A call may have any number of bytes.
    fn data(&mut self, data: &[u8]);

    /// Shows the trailers. They come once, after all of the body, and only if there are any.
    fn trailers(&mut self, fields: &HeadEdit<'_>);

    /// Shows how the response ended, when the exchange has ended.
    fn end(self: Box<Self>, end: ResponseEnd<'_>);
}

/// How the response of an upstream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseEnd<'e> {
    /// The upstream has sent the whole response. The client may have left before it got the last bytes.
    Whole,
    /// The head has been passed on, and this fault ended the exchange before the end of the body was read. `None` if
    /// the exchange was dropped, as by a panic.
    Cut(Option<&'e Fault>),
    /// The request may have been sent to an upstream, but no head was passed on. `None` if the exchange was dropped.
    Unanswered(Option<&'e Fault>),
    /// The upstream has answered with this status. The response was not passed on, because the request was to be sent again, and
    /// then it could not be sent.
    Discarded(u16),
    /// Nothing was sent to an upstream. `None` if the gateway has answered in the upstream's place: the request was refused, or its
    /// route has an answer of its own.
    NotSent(Option<&'e Fault>),
}
