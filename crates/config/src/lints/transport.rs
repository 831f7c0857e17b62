//! Finds connections to a store that reveal a password, and connections that do not verify the server.

use std::net::IpAddr;

use super::file::File;
use super::location::{Finding, Location};
use base::tls::client::Verification;
use stores::redis::{Login, Target};
use stores::{Endpoint, Settings};

/// A server with buckets, or a sentinel. Servers with the same login are one `Server`, so that they get one warning.
struct Server<'f> {
    /// The name of the server in the text of a warning.
    name: String,
    /// Whether a connection to the server may leave this machine.
    is_elsewhere: bool,
    login: &'f Login,
    /// The mapping in the file that has the login.
    location: Location<'f>,
    /// A hint that says how to encrypt the connection.
    hint: &'static str,
}

/// Finds passwords that the gateway sends to another host without TLS.
pub(super) fn cleartext_password(file: &File<'_>) -> Vec<Finding> {
    let clear = |server: &Server<'_>| server.login.has_password() && server.login.tls.is_none() && server.is_elsewhere;
    let finding = |Server { name, location, hint, .. }: Server<'_>| {
        let key = ["password", "password_file"].into_iter().find(|key| location.has(key)).unwrap_or("url");
        let what = format!(
            "sends the password to {name} in the clear: anyone who can listen on the network between can read it, and \
             change every bucket"
        );
        location.key(key).finding(what, hint)
    };
    servers(file).into_iter().filter(clear).map(finding).collect()
}

/// Finds TLS connections that do not verify the certificate of the server. Another server can then take its place.
pub(super) fn unverified_server(file: &File<'_>) -> Vec<Finding> {
    let off = |server: &Server<'_>| {
        server.login.tls.as_ref().is_some_and(|tls| tls.settings().verification == Verification::Off)
    };
    let finding = |Server { name, location, .. }: Server<'_>| {
        let what = format!(
            "is false: any server that answers in the place of {name} gets the password, and decides every request"
        );
        let hint = "name the authority of its certificate in `ca_file`; if the certificate has another name, set `server_name`";
        location.key("tls").key("verify").finding(what, hint)
    };
    let mut found: Vec<Finding> = servers(file).into_iter().filter(off).map(finding).collect();
    for (index, upstream) in file.config.upstreams.iter().enumerate() {
        if upstream.tls.as_ref().is_some_and(|tls| tls.settings().verification == Verification::Off) {
            let what = format!(
                "is false: any server that answers in the place of `{}` gets its requests, with the credentials in them",
                upstream.name
            );
            let hint =
                "name the authority of its certificates in `ca_file`; if they have another name, set `server_name`";
            let location = file.root.key("upstreams").pair(index).key("tls").key("verify");
            found.push(location.finding(what, hint));
        }
    }
    found
}

/// Returns the servers of a shared store and of home, with the locations of their logins in the text.
fn servers<'f>(file: &File<'f>) -> Vec<Server<'f>> {
    let in_file = file.root.key("store");
    let mut servers = servers_of(&file.config.store, &in_file);
    if let Some(home) = &file.config.home {
        servers.extend(servers_of(&home.store, &in_file.key("home")));
    }
    servers
}

/// Returns the servers of one store. `within` is the location of the mapping that has it.
fn servers_of<'f>(store: &'f Settings, within: &Location<'f>) -> Vec<Server<'f>> {
    let location = || within.key(store.name());
    let (Some(endpoint), Some(login)) = (store.endpoint(), store.login()) else { return Vec::new() };
    let target = match endpoint {
        Endpoint::Redis { target, .. } => target,
        Endpoint::Postgres { hosts, .. } => {
            let elsewhere = hosts.iter().find(|host| !is_this_host(&host.host));
            let name = elsewhere.or(hosts.first()).map_or(String::new(), |host| host.host.clone());
            let (location, hint) = (location(), "set `tls`");
            return vec![Server { name, is_elsewhere: elsewhere.is_some(), login, location, hint }];
        }
    };
    match target {
        Target::Address { address, .. } => vec![Server {
            name: address.host.clone(),
            is_elsewhere: !is_this_host(&address.host),
            login,
            location: location(),
            hint: "set `tls`, or a `url` that begins with rediss://",
        }],
        Target::Cluster(cluster) => {
            // If any known node is on another machine, a connection to the cluster may leave this machine.
            let elsewhere = cluster.nodes.iter().find(|node| !is_this_host(&node.host));
            let name = elsewhere.or(cluster.nodes.first()).map_or(String::new(), |node| node.host.clone());
            let (is_elsewhere, hint) = (elsewhere.is_some(), "set `tls`");
            vec![Server { name, is_elsewhere, login, location: location(), hint }]
        }
        Target::Sentinel(sentinels) => {
            let elsewhere = sentinels.nodes.iter().find(|node| !is_this_host(&node.host));
            // If any sentinel is on another machine, the master may be on another machine, too.
            let is_elsewhere = elsewhere.is_some();
            let name = elsewhere.or(sentinels.nodes.first()).map_or(String::new(), |node| node.host.clone());
            let (hint, inner) = ("set `tls`", location().key("sentinel"));
            let master = format!("the master `{}`", sentinels.master);
            vec![
                Server { name: master, is_elsewhere, login, location: location(), hint },
                Server { name, is_elsewhere, login: &sentinels.login, location: inner, hint },
            ]
        }
    }
}

/// Whether a connection to this host never leaves the machine.
fn is_this_host(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    let local = |address: IpAddr| address.to_canonical().is_loopback() || address.is_unspecified();
    // Names for the local host: RFC 6761, section 6.3.
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
