//! Finds connections to a store on which others can read a password, or pass for the store.

use std::net::IpAddr;

use super::file::File;
use super::location::{Finding, Location};
use crate::base::tls::client::Verification;
use crate::store::redis::Login;

/// Anyone who can listen on the network reads a password for another host, unless it travels under TLS.
pub fn cleartext_password(file: &File<'_>) -> Vec<Finding> {
    let Some((host, login, location)) = shared_store(file) else { return Vec::new() };
    if !login.has_password() || login.tls.is_some() || is_this_host(host) {
        return Vec::new();
    }
    let key = ["password", "password_file"].into_iter().find(|key| location.has(key)).unwrap_or("url");
    let what = format!(
        "sends the password to {host} in the clear: anyone who can listen on the network between can read it, and change \
         every bucket"
    );
    vec![location.key(key).finding(what, "set `tls`, or a `url` that begins with rediss://")]
}

/// Without verification TLS protects from those who can listen, not from those who can answer.
pub fn unverified_server(file: &File<'_>) -> Vec<Finding> {
    let Some((host, login, location)) = shared_store(file) else { return Vec::new() };
    let off = login.tls.as_ref().is_some_and(|tls| tls.settings().verification == Verification::Off);
    if !off {
        return Vec::new();
    }
    let what = format!(
        "is false: any server that answers in the place of {host} gets the password, and decides every request"
    );
    let hint =
        "name the authority of its certificate in `ca_file`; if the certificate has another name, set `server_name`";
    vec![location.key("tls").key("verify").finding(what, hint)]
}

/// The host, the login, and where both are in the text.
fn shared_store<'f>(file: &File<'f>) -> Option<(&'f str, &'f Login, Location<'f>)> {
    let store = &file.config.store;
    Some((store.endpoint()?.host, store.login()?, file.root.key("store").key(store.name())))
}

/// Whether a connection to this host never leaves the machine.
fn is_this_host(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    let local = |address: IpAddr| address.to_canonical().is_loopback() || address.is_unspecified();
    // RFC 6761, section 6.3.
    name == "localhost" || name.ends_with(".localhost") || name.parse().is_ok_and(local)
}

#[cfg(test)]
mod tests {
    use super::is_this_host;

    #[test]
    fn loopback_names_and_addresses_are_this_host() {
        for host in ["localhost", "LOCALHOST.", "redis.localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
        {
            assert!(is_this_host(host), "{host}");
        }
        for host in ["redis", "localhost.example.com", "notlocalhost", "10.0.0.1", "::2", "127.0.0.1.example.com"] {
            assert!(!is_this_host(host), "{host}");
        }
    }
}
