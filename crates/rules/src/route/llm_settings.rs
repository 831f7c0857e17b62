//! Defines the settings for requests to language models, of the file or of a route.

use std::num::NonZeroU64;

use crate::upstream_results::UpstreamResults;
use ledger::cost::Cost;

/// The settings for requests to language models, and for budgets whose costs the response names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlmSettings {
    /// Whether the gateway asks for the usage of an OpenAI stream if the client has not asked.
    pub ask_for_usage: bool,
    /// Whether a request is refused if its response will not name the usage.
    pub require_usage: bool,
    /// The results of the upstream for which a request costs nothing, if the response names no usage.
    pub refund_on: UpstreamResults,
    pub other: OtherRequests,
    /// The bytes of text that are estimated as one token.
    pub bytes_per_token: NonZeroU64,
    /// The tokens that are estimated for an image or another medium within a request.
    pub media: u64,
}

/// The treatment of POST requests in no known format, at limits on language models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherRequests {
    Refuse,
    Free,
    Cost(Cost),
}

/// The settings of a route that replace those of the file. `None` keeps the setting of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LlmOverrides {
    pub ask_for_usage: Option<bool>,
    pub require_usage: Option<bool>,
    pub refund_on: Option<UpstreamResults>,
    pub other: Option<OtherRequests>,
    pub bytes_per_token: Option<NonZeroU64>,
    pub media: Option<u64>,
}

impl Default for LlmSettings {
    fn default() -> LlmSettings {
        let mut refund_on = UpstreamResults::default();
        for result in LlmSettings::REFUND_ON {
            refund_on.add(result);
        }
        LlmSettings {
            ask_for_usage: true,
            require_usage: false,
            refund_on,
            other: OtherRequests::Refuse,
            bytes_per_token: NonZeroU64::new(4).unwrap_or(NonZeroU64::MIN),
            media: 1500,
        }
    }
}

impl LlmSettings {
    /// The default of `refund_on`.
    pub const REFUND_ON: [&str; 3] = ["connect", "429", "5xx"];

    /// Returns these settings, some of them replaced by the settings of a route.
    #[must_use]
    pub fn with(&self, route: &LlmOverrides) -> LlmSettings {
        LlmSettings {
            ask_for_usage: route.ask_for_usage.unwrap_or(self.ask_for_usage),
            require_usage: route.require_usage.unwrap_or(self.require_usage),
            refund_on: route.refund_on.clone().unwrap_or_else(|| self.refund_on.clone()),
            other: route.other.unwrap_or(self.other),
            bytes_per_token: route.bytes_per_token.unwrap_or(self.bytes_per_token),
            media: route.media.unwrap_or(self.media),
        }
    }
}
