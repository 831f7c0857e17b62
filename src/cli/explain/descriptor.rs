//! Explains the decision about a descriptor from Envoy's rate limit filter, or from a service.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use super::credentials::Credentials;
use super::report::{Descriptor, Entry, Report, Subject};
use super::{Arguments, by_rules};
use crate::cli::failure::Failure;
use crate::gateway::take_call::HoldFor;
use base::waiting_time::WaitingTime;
use config::{Config, Listener};
use request::client_address::ClientAddress;
use request::door::Door;
use request::request::{ONLY_LISTENER, Request};
use request::sent_descriptor::SentDescriptor;

/// Explains the decision about the descriptor on the command line.
///
/// # Errors
/// When an argument or the listener is invalid, or the store cannot be read.
pub(super) fn explain(arguments: &Arguments, config: &Config) -> Result<Report, Failure> {
    let Arguments { headers, jwt, claims, client_cert, .. } = arguments;
    if !headers.is_empty() || jwt.is_some() || claims.is_some() || client_cert.is_some() {
        return Err("--descriptor: without a URL there is no request, so it has neither headers nor credentials".into());
    }
    let entries = entries(arguments)?;
    let (listener, door) = match arguments.hold_for {
        None => listener(arguments.listener.as_deref(), config)?,
        Some(_) => holding_listener(arguments.listener.as_deref(), config)?,
    };
    let domain = arguments.domain.as_deref();
    // Envoy always sends a domain, which may be empty.
    let domain = if door == Door::Rls { domain.or(Some("")) } else { domain };
    let sent = SentDescriptor::of_call(domain, entries);
    // At this door, no rule reads the head or the client's address.
    let (head, ()) = http::Request::new(()).into_parts();
    let nobody = ClientAddress::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 128);
    let request = Request::new(&head, nobody).with_listener(listener).with_door(door).with_descriptor(Some(&sent));
    let request = request.with_hold(arguments.hold_for.is_some());
    let shown = |(key, value): &(Cow<'_, str>, Cow<'_, str>)| Entry { key: key.to_string(), value: value.to_string() };
    let entries = sent.entries().iter().map(shown).collect();
    let hold_for = arguments.hold_for.map(|HoldFor(time)| WaitingTime(time).to_string());
    let shown = Descriptor { domain: domain.map(str::to_owned), entries, door: door.name(), hold_for };
    let subject = Subject { request: None, descriptor: Some(shown) };
    by_rules(arguments, config, subject, &Credentials::default(), &request)
}

/// Returns the entries of the descriptor as pairs of key and value, in the order of the arguments.
///
/// # Errors
/// When an entry does not have the form `key=value`.
pub(super) fn entries(arguments: &Arguments) -> Result<Vec<(&str, &str)>, Failure> {
    arguments.descriptor.iter().map(|text| entry(text)).collect()
}

/// Checks an entry of a descriptor on the command line, and returns it unchanged.
///
/// # Errors
/// If the entry does not have the form `key=value`.
pub(super) fn entry_argument(text: &str) -> Result<String, String> {
    match entry(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("must be 'key=value'".to_owned()),
    }
}

/// Splits `key=value` at the first `=`.
fn entry(text: &str) -> Result<(&str, &str), Failure> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key, value)),
        _ => Err(format!("--descriptor: must be 'key=value', is {text:?}").into()),
    }
}

/// Parses the time of a hold on the command line.
///
/// # Errors
/// If it is not a time from a second to an hour.
pub(super) fn hold_argument(text: &str) -> Result<HoldFor, String> {
    HoldFor::parse(text).ok_or_else(|| "must be a time from `1s` to `1h`".to_owned())
}

/// Returns the name of the listener at which a service holds what it takes, and its door.
///
/// # Errors
/// If no listener has the door `json`, or the gateway would refuse every hold.
fn holding_listener<'c>(name: Option<&str>, config: &'c Config) -> Result<(&'c str, Door), Failure> {
    let is_named = |listener: &&Listener| name.is_none_or(|name| listener.name == name);
    let mut named = config.listeners.iter().filter(is_named);
    let Some(found) = named.find(|listener| listener.doors().contains(&Door::Json)) else {
        return Err("--hold-for: only a listener with `decide: [json]` holds what a service takes".into());
    };
    if config.hash_key.is_public() {
        return Err("--hold-for: `hold_for` needs `hash_key` in the file".into());
    }
    Ok((&*found.name, Door::Json))
}

/// Returns the name of the listener that would be asked about a descriptor, and the door of the call.
///
/// # Errors
/// If the file has no listener with this name.
fn listener<'c>(name: Option<&str>, config: &'c Config) -> Result<(&'c str, Door), Failure> {
    let listeners = &config.listeners;
    let door = |listener: &Listener| listener.doors().iter().copied().find(|door| door.has_only_descriptors());
    let asked = match name {
        None => listeners.iter().find(|listener| door(listener).is_some()).or(listeners.first()),
        Some(name) => match listeners.iter().find(|listener| listener.name == name) {
            Some(listener) => Some(listener),
            None => return Err(format!("--listener: the file has no listener `{}`", name.escape_debug()).into()),
        },
    };
    Ok(asked.map_or((ONLY_LISTENER, Door::Rls), |listener| (&*listener.name, door(listener).unwrap_or(Door::Rls))))
}
