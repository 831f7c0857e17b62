//! Records how much of a response has passed, for the end of the exchange. Shows an upstream's response to the
//! observer.

use super::fault::Fault;
use super::head_edit::HeadEdit;
use super::response_observer::{ResponseEnd, ResponseObserver};

/// What is reported of the response. A response may begin in any stage of the exchange.
#[derive(Debug, Default)]
pub(super) struct ResponseReport {
    /// `None` before the response has begun.
    pub begun: Option<BegunResponse>,
    /// The number of bytes of the body, without the sizes of chunks and without trailers.
    pub bytes: usize,
    /// Why the exchange was not finished. `None` if the exchange was finished.
    pub fault: Option<Fault>,
    /// How much of the upstream's response has been read.
    read: ReadResponse,
    /// The observer of the upstream's response. `None` for almost every request.
    pub observer: Option<Box<dyn ResponseObserver>>,
}

/// A response whose head has been made.
#[derive(Clone, Copy, Debug)]
pub(super) struct BegunResponse {
    pub code: u16,
    pub source: ResponseSource,
}

/// Who has made a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseSource {
    Upstream,
    /// The gateway, in the place of an upstream, as configured: a fixed response, a redirect or the answer to a preflight.
    Configuration,
    /// The gateway, because the request was refused or failed.
    Gateway,
}

/// How much of the upstream's response has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReadResponse {
    /// The final head has not been read.
    #[default]
    Nothing,
    Head,
    /// All of the body, because it has the length that the head states. Its end and trailers may still follow.
    Body,
    Whole,
}

/// Whether any byte of a request was sent to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentRequest {
    Possible,
    /// An upstream has answered with this status, which was not passed on, and nothing was sent in the attempts after it.
    Discarded(u16),
    None,
}

impl ResponseReport {
    /// Notes that the response has begun.
    pub(super) fn begin(&mut self, code: u16, source: ResponseSource) {
        self.begun = Some(BegunResponse { code, source });
    }

    /// Notes that the upstream's response has begun. `head` is its final head, as it arrived.
    pub(super) fn begin_upstream(&mut self, status: u16, head: &[u8]) {
        self.begin(status, ResponseSource::Upstream);
        self.read = ReadResponse::Head;
        if self.observer.is_some() {
            self.show_head(status, head);
        }
    }

    /// Notes bytes of the body that are passed on. The bytes of a tunnel are counted too, but are no part of the response.
    pub(super) fn note_data(&mut self, data: &[u8]) {
        self.bytes += data.len();
        if self.observer.is_some() {
            self.show_data(data);
        }
    }

    /// Notes that the body has reached the length that the head states. A client may leave as soon as it has got these bytes, before
    /// the upstream has marked their end.
    pub(super) fn note_length_reached(&mut self) {
        if self.read == ReadResponse::Head {
            self.read = ReadResponse::Body;
        }
    }

    /// Notes that the upstream has sent all of its response. `trailers` are the lines of its trailers and the empty line after
    /// them. Does nothing if the end has been noted before.
    #[inline]
    pub(super) fn note_end(&mut self, trailers: &[u8]) {
        if matches!(self.read, ReadResponse::Nothing | ReadResponse::Whole) {
            return;
        }
        self.read = ReadResponse::Whole;
        if self.observer.is_some() {
            self.show_trailers(trailers);
        }
    }

    // What follows is cold, because almost no response has an observer.

    #[cold]
    fn show_head(&mut self, status: u16, head: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.head(status, &HeadEdit::new(head));
        }
    }

    #[cold]
    fn show_data(&mut self, data: &[u8]) {
        if let Some(observer) = &mut self.observer
            && self.read == ReadResponse::Head
            && !data.is_empty()
        {
            observer.data(data);
        }
    }

    #[cold]
    fn show_trailers(&mut self, trailers: &[u8]) {
        if let Some(observer) = &mut self.observer
            && trailers.len() > 2
        {
            // Trailers have the form of a head without its first line.
            observer.trailers(&HeadEdit::new(&[b"\r\n", trailers].concat()));
        }
    }

    /// Shows the observer, if there is one, how the response ended. Does nothing when it is called again.
    #[cold]
    pub(super) fn end_observation(&mut self, request: SentRequest) {
        let Some(observer) = self.observer.take() else { return };
        let fault = self.fault.as_ref();
        observer.end(match self.read {
            ReadResponse::Body | ReadResponse::Whole => ResponseEnd::Whole,
            ReadResponse::Head => ResponseEnd::Cut(fault),
            ReadResponse::Nothing => match request {
                SentRequest::Possible => ResponseEnd::Unanswered(fault),
                SentRequest::Discarded(status) => ResponseEnd::Discarded(status),
                SentRequest::None => ResponseEnd::NotSent(fault),
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The calls that an observer has got.
    #[derive(Clone, Debug, Default)]
    struct Calls(Arc<Mutex<Vec<String>>>);

    impl Calls {
        fn add(&self, call: &str, fields: &HeadEdit<'_>) {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            let fields = fields.fields().map(|(name, value)| format!(" {}={}", text(name), text(value)));
            self.0.lock().unwrap().push(format!("{call}{}", fields.collect::<String>()));
        }
    }

    impl ResponseObserver for Calls {
        fn head(&mut self, status: u16, fields: &HeadEdit<'_>) {
            self.add(&status.to_string(), fields);
        }

        fn data(&mut self, data: &[u8]) {
            self.0.lock().unwrap().push(String::from_utf8(data.to_vec()).unwrap());
        }

        fn trailers(&mut self, fields: &HeadEdit<'_>) {
            self.add("trailers", fields);
        }

        fn end(self: Box<Self>, end: ResponseEnd<'_>) {
            self.0.lock().unwrap().push(format!("{end:?}"));
        }
    }

    /// Returns what an observer is shown while `pass` notes a response, and at the end of its exchange.
    fn shown(request: SentRequest, pass: impl FnOnce(&mut ResponseReport)) -> Vec<String> {
        let calls = Calls::default();
        let mut report = ResponseReport { observer: Some(Box::new(calls.clone())), ..ResponseReport::default() };
        pass(&mut report);
        report.end_observation(request);
        report.end_observation(request);
        let shown = calls.0.lock().unwrap();
        shown.clone()
    }

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nX-Cost: 5\r\nConnection: close\r\n\r\n";

    #[test]
    fn an_observer_is_shown_everything_once() {
        let shown = shown(SentRequest::Possible, |report| {
            report.begin_upstream(200, HEAD);
            for data in [&b"a"[..], b"", b"bc"] {
                report.note_data(data);
            }
            assert_eq!(report.bytes, 3);
            // The length is reached before the trailers arrive.
            report.note_length_reached();
            report.note_end(b"X-Sum: 1\r\n\r\n");
            report.note_end(b"X-Sum: 1\r\n\r\n");
        });
        assert_eq!(shown, ["200 X-Cost=5 Connection=close", "a", "bc", "trailers X-Sum=1", "Whole"]);
    }

    #[test]
    fn the_bytes_of_a_tunnel_are_counted_and_not_shown() {
        let shown = shown(SentRequest::Possible, |report| {
            report.begin_upstream(101, HEAD);
            report.note_end(b"");
            report.note_data(b"tunnelled");
            report.note_end(b"");
            assert_eq!(report.bytes, 9);
        });
        assert_eq!(shown, ["101 X-Cost=5 Connection=close", "Whole"]);
    }

    #[test]
    fn a_response_whose_end_was_not_read_is_cut() {
        let begin = |report: &mut ResponseReport| {
            report.begin_upstream(200, HEAD);
            report.note_data(b"a");
        };
        assert_eq!(shown(SentRequest::Possible, begin).last().unwrap(), "Cut(None)");
        let leave = |report: &mut ResponseReport| {
            begin(report);
            report.fault = Some(Fault::LENGTH_MISMATCH);
        };
        let last = shown(SentRequest::Possible, leave).pop().unwrap();
        assert!(last.starts_with("Cut(Some(Own(400"), "{last}");
        // The client may leave between the last byte of the body and the mark of its end.
        let leave = |report: &mut ResponseReport| {
            begin(report);
            report.note_length_reached();
            report.fault = Some(Fault::LENGTH_MISMATCH);
        };
        assert_eq!(shown(SentRequest::Possible, leave).last().unwrap(), "Whole");
    }

    #[test]
    fn a_response_of_the_gateway_is_not_shown() {
        let answer = |report: &mut ResponseReport| {
            report.begin(503, ResponseSource::Gateway);
            report.bytes += 2;
        };
        assert_eq!(shown(SentRequest::None, answer), ["NotSent(None)"]);
        assert_eq!(shown(SentRequest::Possible, answer), ["Unanswered(None)"]);
    }
}
