//! Reads `health` of an upstream: how its endpoints are checked.

use std::fmt;
use std::ops::RangeInclusive;

use serde_json::json;

use crate::language::key::{Key, Mapping, POSITIVE_DURATION, TEXT, Type};
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use base::time::Micros;

/// The settings of the health checks that an upstream makes at its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub check: HealthCheck,
    pub interval: Micros,
    pub timeout: Micros,
    /// The number of checks that must fail in a row before an endpoint counts as down.
    pub fall: u32,
    /// The number of checks that must pass in a row before an endpoint counts as up again.
    pub rise: u32,
    /// The `Host` field of the check requests. `None`: the host in the URL of the endpoint.
    pub host: Option<String>,
    /// The port that is checked. `None`: the port of the endpoint.
    pub port: Option<u16>,
}

/// The kind of request that a health check sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    Http {
        /// The request target of the check requests, such as `/healthz`.
        path: String,
        expect: ExpectedStatus,
    },
    /// A call of the gRPC health protocol, for this service.
    Grpc { service: String },
}

/// A range of status codes. An endpoint is healthy if it answers a check with one of these codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedStatus(RangeInclusive<u16>);

impl ExpectedStatus {
    pub fn contains(&self, status: u16) -> bool {
        self.0.contains(&status)
    }

    fn parse(text: &str) -> Option<ExpectedStatus> {
        let status = |text: &str| {
            let status = (text.len() == 3).then(|| text.parse().ok()).flatten();
            status.filter(|status| (100..=599).contains(status))
        };
        let range = match (text.strip_suffix("xx"), text.split_once('-')) {
            (Some(class), _) => {
                let first = status(&format!("{class}00"))?;
                first..=first + 99
            }
            (None, Some((first, last))) => status(first)?..=status(last)?,
            (None, None) => status(text)?..=status(text)?,
        };
        (!range.is_empty()).then_some(ExpectedStatus(range))
    }
}

impl fmt::Display for ExpectedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.start(), self.0.end()) {
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

const TIMEOUT: Micros = Micros(1_000_000);

const PATH: ValueKind<ParseText<String>> = ValueKind::new(
    "text",
    Shape::text(&["^/[!-~]*$"], "begin with / and have no spaces or other characters that a URL cannot have"),
    |path| Some(path.to_owned()),
);

const EXPECTED_STATUS: ValueKind<ParseText<ExpectedStatus>> = ValueKind::new(
    "status, class of statuses, or range",
    Shape::Either {
        of: &[
            Shape::Text(Text::new(Scalars::Spelling, &["^[1-5](xx|[0-9][0-9](-[1-5][0-9][0-9])?)$"], STATUS_MUST)),
            Shape::whole(100, 599),
        ],
        must: Some(STATUS_MUST),
    },
    ExpectedStatus::parse,
);

const STATUS_MUST: &str = "be a status like 204, a class like 2xx, or a range like 200-399";

const HOST: ValueKind<ParseText<String>> = ValueKind::new(
    "text",
    Shape::text(
        &[r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]+)?$"],
        "be a host name, with a port if it is not the usual one",
    ),
    |host| Some(host.to_owned()),
);

const PORT: ValueKind<ParseText<u16>> = ValueKind::new("1 to 65535", Shape::whole(1, 65_535), |text| text.parse().ok());

pub(crate) static HEALTH: Mapping = Mapping {
    heading: Some("key in `health`"),
    definition: None,
    keys: &[
        Key::optional("path", PATH.declared(), "The path of the checks, or `grpc` in its place."),
        Key::optional(
            "grpc",
            TEXT,
            "The service, or empty for the server, to check by gRPC's health protocol over HTTP/2.",
        ),
        Key::default("expect", EXPECTED_STATUS.declared(), "2xx", "The statuses of a healthy endpoint."),
        Key::default("interval", POSITIVE_DURATION, "5s", "The time between the checks of an endpoint."),
        Key::depends(
            "timeout",
            POSITIVE_DURATION,
            "`1s`, or `interval` if that is shorter",
            "For a whole check, from the connection to the status.",
        ),
        Key::default(
            "fall",
            Type::Whole { least: 1, most: 1000 },
            "3",
            "Failed checks in a row after which an endpoint is down.",
        ),
        Key::default(
            "rise",
            Type::Whole { least: 1, most: 1000 },
            "2",
            "Passed checks in a row after which it is up again.",
        ),
        Key::depends("host", HOST.declared(), "the host of the endpoint's `url`", "`Host` of the requests."),
        Key::depends("port", PORT.declared(), "that of the endpoint", "The port to check."),
    ],
    constraints: || {
        json!({"anyOf": [{"required": ["path"]}, {"required": ["grpc"]}], "dependencies": {
            "grpc": {"properties": {"path": false, "expect": false}}
        }})
    },
};

fn service(field: Field<'_>) -> Option<String> {
    let service = field.written()?;
    // The message of a gRPC check has only one byte for the length of the service's name.
    if service.len() > 127 {
        field.must("have at most 127 bytes");
        return None;
    }
    Some(service.to_owned())
}

pub(crate) fn health(field: Field<'_>) -> Option<Health> {
    let section = field.section(&HEALTH)?;
    let check = match section.get("grpc") {
        Some(field) => {
            for http in ["path", "expect"] {
                section.unwanted(http, "must not stand beside `grpc`");
            }
            let service = field.known_or("unknown", service);
            service.map(|service| HealthCheck::Grpc { service })
        }
        None => {
            let path = section.need("path").and_then(|field| field.known_or("/", |field| PATH.read(field)));
            let expect = section.value("expect", |field| EXPECTED_STATUS.read(field));
            path.zip(expect).map(|(path, expect)| HealthCheck::Http { path, expect })
        }
    };
    let interval = section.positive_duration("interval");
    let timeout = section.optional("timeout", |field| {
        let timeout = field.positive_duration()?;
        let fits = interval.is_none_or(|interval| timeout <= interval);
        if !fits {
            field.must("not be longer than `interval`");
        }
        fits.then_some(timeout)
    });
    let (fall, rise) = (section.whole("fall"), section.whole("rise"));
    let host = section.optional("host", |field| HOST.read(field));
    let port = section.optional("port", |field| PORT.read(field));
    section.close();
    let interval = interval?;
    Some(Health {
        check: check?,
        interval,
        timeout: timeout?.unwrap_or(TIMEOUT.min(interval)),
        fall: u32::try_from(fall?).ok()?,
        rise: u32::try_from(rise?).ok()?,
        host: host?,
        port: port?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_statuses_are_one_a_class_or_a_range() {
        for (text, first, last) in [("204", 204, 204), ("2xx", 200, 299), ("200-399", 200, 399), ("5xx", 500, 599)] {
            let expected = ExpectedStatus::parse(text).unwrap();
            assert!(expected.contains(first) && expected.contains(last), "{text}");
            assert!(!expected.contains(first - 1) && !expected.contains(last + 1), "{text}");
        }
        for text in ["", "xx", "6xx", "99", "2000", "2x", "300-200", "200-", "-200", "200-700", "0xx", "20x"] {
            assert_eq!(ExpectedStatus::parse(text), None, "{text}");
        }
    }
}
