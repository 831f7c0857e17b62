//! Gives clients of HTTP/1.0 responses that they can read: none in chunks, which they do not know, and no interim ones.
//!
//! Without a length the connection ends with the body (RFC 9112, section 6.3).

use std::any::Any;

use async_trait::async_trait;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::modules::http::{HttpModule, HttpModuleBuilder, HttpModules, Module};
use pingora::proxy::Session;

/// Prepares the session of a request of HTTP/1.0.
pub fn begin(session: &mut Session) {
    if session.req_header().version == Version::HTTP_10 {
        session.set_ignore_info_resp(true);
        // Pingora adds the encoding after our filters have run. Only a module comes later.
        let mut modules = HttpModules::new();
        modules.add_module(Box::new(WithoutChunks));
        session.downstream_modules_ctx = modules.build_ctx();
    }
}

/// Ends the connection with a response whose end could not be found otherwise.
pub fn end_with_body(session: &mut Session, response: &ResponseHeader) {
    if session.req_header().version != Version::HTTP_10 {
        return;
    }
    let has_body = session.req_header().method != Method::HEAD
        && !matches!(response.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let has_length = response.headers.contains_key(CONTENT_LENGTH) && !response.headers.contains_key(TRANSFER_ENCODING);
    if has_body && !has_length {
        session.set_keepalive(None);
    }
}

/// The body is then written as it is, up to its end.
struct WithoutChunks;

#[async_trait]
impl HttpModule for WithoutChunks {
    async fn response_header_filter(&mut self, response: &mut ResponseHeader, _: bool) -> Result<()> {
        response.remove_header(&TRANSFER_ENCODING);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl HttpModuleBuilder for WithoutChunks {
    fn init(&self) -> Module {
        Box::new(WithoutChunks)
    }
}
