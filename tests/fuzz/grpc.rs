//! Tests properties of calls from Envoy, on any body: frames, messages, and the values that are read from them.

use super::mutation::{fuzz, is_bug_planted};
use request::sent_descriptor::attribute_name;
use tollgate::gateway::checked_request;
use tollgate::gateway::descriptors::descriptors;
use tollgate::gateway::grpc::frame::{FrameError, LONGEST, PREFIX, read, write};
use tollgate::gateway::grpc::messages::{CheckRequest, RateLimitRequest};

/// Checks properties of every body from which a message was read.
fn check_frame<M: prost::Message + Default + PartialEq>(body: &[u8], read_body: &Result<M, FrameError>) {
    match read_body {
        Ok(message) => {
            let declared = u32::from_be_bytes(body[1..PREFIX].try_into().unwrap()) as usize;
            assert_eq!((body[0], body.len()), (0, PREFIX + declared), "a byte that is in no frame");
            assert!(declared <= LONGEST);
            assert!(
                read::<M>(&write(message)).is_ok_and(|again| again == *message),
                "it is read otherwise when it is written again"
            );
        }
        Err(FrameError::Compressed) => assert_eq!(body[0], 1),
        Err(FrameError::Framing | FrameError::TooLong | FrameError::Message) => {}
        Err(FrameError::Late) => panic!("nothing was waited for"),
    }
}

#[test]
pub fn rate_limit_call() {
    let words: &[&[u8]] = &[
        b"\0\0\0\0",
        b"\x0a\x04edge",
        b"\x12\x0a\x0a\x08\x0a\x01a\x12\x01b",
        b"\x0a\x06\x0a\x01a\x12\x01b",
        b"\x1a\x00",
        b"\x1a\x02\x08\x05",
        b"\x18\x03",
        b"\x20\x01",
        b"\xff\xff\xff\xff\x0f",
        b"domain",
        b"entries",
    ];
    // The planted bug: a zero byte after the message counts as a part of its frame.
    let parse = |body: &[u8]| {
        let cut = if is_bug_planted() { body.strip_suffix(b"\0").unwrap_or(body) } else { body };
        read::<RateLimitRequest>(cut)
    };
    fuzz("rate-limit-call", words, |body| {
        let message = parse(body);
        check_frame(body, &message);
        let Ok(message) = message else { return (message.err().map(|error| format!("{error:?}")), 0, 0) };
        let descriptors = descriptors(&message);
        assert_eq!(descriptors.len(), message.descriptors.len());
        for (asked, descriptor) in descriptors.iter().zip(&message.descriptors) {
            assert_eq!(asked.sent.value("domain").as_deref(), Some(&*message.domain), "an entry poses as the domain");
            let keys: Vec<&str> = descriptor.entries.iter().map(|entry| &*entry.key).collect();
            assert_eq!(asked.sent.value("entries").as_deref(), Some(&*keys.join("/")), "an entry poses as the shape");
            for (index, entry) in descriptor.entries.iter().enumerate() {
                let before = keys[..index].iter().filter(|key| **key == entry.key).count();
                let name = attribute_name(&entry.key, before);
                let is_taken = ["domain", "entries"].contains(&&*name) || (before > 0 && keys.contains(&&*name));
                let value = String::from_utf8_lossy(&entry.value);
                assert!(is_taken || asked.sent.value(&name).as_deref() == Some(&*value), "{name} is another entry");
            }
        }
        (None, message.descriptors.len(), message.descriptors.iter().map(|one| one.entries.len()).max().unwrap_or(0))
    });
}

#[test]
pub fn authorization_call() {
    let words: &[&[u8]] = &[
        b"\x1a\x06\x0a\x01a\x12\x01b",
        b"\x1a\x0b\x0a\x05:path\x12\x02/a",
        b"\x1a\x0c\x0a\x06cookie\x12\x02a,",
        b"\x6a\x08\x0a\x06\x0a\x01a\x12\x01b",
        b"\x0a\x0d\x0a\x0b\x0a\x09\x12\x071.2.3.4",
        b"\x52\x06\x0a\x01a\x12\x01b",
        b",",
        b"::1",
        b"\r\n",
    ];
    // The planted bug: a pseudo-header field counts as a field that the client has sent.
    let parse = |body: &[u8]| {
        let message = read::<CheckRequest>(body);
        message.map(|mut message| {
            let http = message.attributes.as_mut().and_then(|all| all.request.as_mut()?.http.as_mut());
            if let Some(http) = http.filter(|_| is_bug_planted()) {
                http.headers =
                    http.headers.iter().map(|(name, value)| (name.replace(':', "p-"), value.clone())).collect();
            }
            message
        })
    };
    fuzz("authorization-call", words, |body| {
        let message = parse(body);
        let whole = read::<CheckRequest>(body);
        check_frame(body, &whole);
        let (Ok(message), Ok(whole)) = (message, whole) else { return (0, 0, false) };
        let Ok(asked) = checked_request::read(&message) else { return (1, 0, false) };
        let http = whole.attributes.as_ref().unwrap().request.as_ref().unwrap().http.as_ref().unwrap();
        let sent: usize = match &http.header_map {
            Some(raw) => raw.headers.iter().filter(|one| !one.key.starts_with(':')).count(),
            // Every comma may separate two values, except in cookies.
            None => {
                let own = http.headers.iter().filter(|(name, _)| !name.starts_with(':'));
                own.map(|(name, value)| match name.eq_ignore_ascii_case("cookie") {
                    true => 1,
                    false => value.split(|byte| *byte == b',').count(),
                })
                .sum()
            }
        };
        assert_eq!(asked.fields.len(), sent, "a field is lost, or not the client's");
        assert!(asked.fields.keys().all(|name| !name.as_str().starts_with(':')));
        (2, asked.fields.len().min(9), http.header_map.is_some())
    });
}
