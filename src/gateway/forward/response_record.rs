//! Records for tests which parts of a response an observer has seen. Only a build with the feature `test-hooks` contains the record.

use http::HeaderValue;

use super::response_observer::ResponseObserver;

/// Returns an observer that logs what it has been shown, if the environment variable `TOLLGATE_TEST_RECORD_RESPONSES` is set.
#[cfg_attr(not(feature = "test-hooks"), inline(always))]
pub(super) fn observer(request_id: &HeaderValue) -> Option<Box<dyn ResponseObserver>> {
    #[cfg(feature = "test-hooks")]
    if std::env::var_os("TOLLGATE_TEST_RECORD_RESPONSES").is_some() {
        return Some(Box::new(record::ResponseRecord::new(request_id)));
    }
    let _ = request_id;
    None
}

#[cfg(feature = "test-hooks")]
mod record {
    use http::HeaderValue;
    use sha2::{Digest, Sha256};

    use crate::gateway::forward::head_edit::HeadEdit;
    use crate::gateway::forward::response_observer::{ResponseEnd, ResponseObserver};

    /// What an observer has been shown of one response.
    #[derive(Debug)]
    pub(super) struct ResponseRecord {
        request_id: String,
        /// The calls, in their order, without repetitions of `data`.
        calls: Vec<&'static str>,
        status: u16,
        /// The fields of the head, as `name: value`. `trailers` has the same form.
        fields: Vec<String>,
        trailers: Vec<String>,
        pieces: usize,
        bytes: usize,
        digest: Sha256,
    }

    impl ResponseRecord {
        pub(super) fn new(request_id: &HeaderValue) -> ResponseRecord {
            ResponseRecord {
                request_id: String::from_utf8_lossy(request_id.as_bytes()).into_owned(),
                calls: Vec::new(),
                status: 0,
                fields: Vec::new(),
                trailers: Vec::new(),
                pieces: 0,
                bytes: 0,
                digest: Sha256::new(),
            }
        }

        fn note_call(&mut self, call: &'static str) {
            if call != "data" || self.calls.last() != Some(&call) {
                self.calls.push(call);
            }
        }
    }

    impl ResponseObserver for ResponseRecord {
        fn head(&mut self, status: u16, fields: &HeadEdit<'_>) {
            self.note_call("head");
            self.status = status;
            self.fields.extend(lines(fields));
        }

        fn data(&mut self, data: &[u8]) {
            self.note_call("data");
            self.pieces += 1;
            self.bytes += data.len();
            self.digest.update(data);
        }

        fn trailers(&mut self, fields: &HeadEdit<'_>) {
            self.note_call("trailers");
            self.trailers.extend(lines(fields));
        }

        fn end(mut self: Box<Self>, end: ResponseEnd<'_>) {
            self.note_call("end");
            let (end, fault) = match end {
                ResponseEnd::Whole => ("whole", None),
                ResponseEnd::Cut(fault) => ("cut", fault),
                ResponseEnd::Unanswered(fault) => ("unanswered", fault),
                ResponseEnd::Discarded(_) => ("discarded", None),
                ResponseEnd::NotSent(fault) => ("not sent", fault),
            };
            log::info!(
                request_id = self.request_id,
                calls = self.calls.join(" "),
                status = self.status,
                fields = self.fields.join("\n"),
                pieces = self.pieces,
                bytes = self.bytes,
                sha256 = hex(&self.digest.finalize()),
                trailers = self.trailers.join("\n"),
                end,
                fault:? = fault;
                "test-hooks: the response of an upstream was observed"
            );
        }
    }

    fn lines(fields: &HeadEdit<'_>) -> Vec<String> {
        let line = |(name, value): (&[u8], &[u8])| {
            format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        };
        fields.fields().map(line).collect()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
