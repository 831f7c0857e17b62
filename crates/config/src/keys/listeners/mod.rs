//! Reads `listeners`, or `listen` for a single listener: the addresses on which requests arrive.

pub(crate) mod decide;
pub(crate) mod listen_address;
pub(crate) mod listener_protocols;
pub(crate) mod listener_tls;
pub(crate) mod socket_mode;
pub(crate) mod socket_path;
pub(crate) mod taken_addresses;

use std::collections::HashSet;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::Value;

use crate::keys::listeners::decide::{ANSWER_WITHIN, CLIENTS, DECIDE, Decide, ORIGINAL_REQUEST_KEY, REFUSE_WITH_KEY};
use crate::keys::listeners::listen_address::LISTEN_ADDRESS;
use crate::keys::listeners::listener_protocols::{LISTENER_PROTOCOLS, listener_protocols};
use crate::keys::listeners::listener_tls::{LISTENER_TLS, listener_tls};
use crate::keys::listeners::socket_mode::{SOCKET_MODE_KEY, SocketMode, socket_mode};
use crate::keys::listeners::taken_addresses::TakenAddresses;
use crate::keys::network_list::SOME_NETWORKS;
use crate::keys::rules::names::unique_name;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, NAME, Type, unconstrained};
use crate::language::reader::{Field, Section, all};
use base::endpoint_address::EndpointAddress;
use base::http_protocol::HttpProtocol;
use base::time::Timestamp;
use base::tls::server::Server;
use request::door::Door;
use request::request::ONLY_LISTENER;

/// A listener: an address at which the gateway accepts connections, with its settings.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The name of the listener in the file. The default is `http`, or the address if there are several listeners.
    pub name: String,
    pub address: EndpointAddress,
    /// The permissions of the file of a Unix domain socket. `None`: the umask of the process decides.
    pub socket_mode: Option<SocketMode>,
    pub proxy_protocol: HeaderSenders,
    /// The TLS settings and certificates. `None`: connections are not encrypted.
    pub tls: Option<Arc<Server>>,
    /// The versions of HTTP that the listener offers to clients. There is at least one. The preferred version is the first.
    pub protocols: Vec<HttpProtocol>,
    /// The settings for deciding for other proxies. `None`: the listener proxies requests.
    pub decide: Option<Decide>,
}

impl Listener {
    /// Returns the kinds of calls by which other proxies may ask this listener. Empty for a listener that proxies.
    pub fn doors(&self) -> &[Door] {
        self.decide.as_ref().map_or(&[], |decide| &decide.doors)
    }

    /// Makes a listener for HTTP/1.1 without encryption, as the key `listen` does.
    fn plain(address: EndpointAddress) -> Listener {
        let protocols = vec![HttpProtocol::Http1];
        Listener {
            name: ONLY_LISTENER.to_owned(),
            address,
            socket_mode: None,
            proxy_protocol: HeaderSenders::Nobody,
            tls: None,
            protocols,
            decide: None,
        }
    }

    /// Whether the short key `listen` can describe this listener.
    pub fn is_plain(&self) -> bool {
        let plain = Listener::plain(self.address.clone());
        let is_open = self.tls.is_none() && self.decide.is_none();
        let is_accepted_alike = self.proxy_protocol == plain.proxy_protocol && self.socket_mode == plain.socket_mode;
        is_accepted_alike && is_open && self.protocols == plain.protocols
    }

    /// Whether this listener can replace `before` without a restart: only certificates and `decide` may differ.
    pub fn is_reload_of(&self, before: &Listener) -> bool {
        self.name == before.name
            && self.address == before.address
            && self.socket_mode == before.socket_mode
            && self.tls.is_some() == before.tls.is_some()
            && self.proxy_protocol == before.proxy_protocol
            && self.protocols == before.protocols
            && self.doors() == before.doors()
    }

    /// Returns `before` with the settings of this listener that take effect without a restart. If both listeners name
    /// the same certificate files, the certificates stay, because the gateway follows changes of these files. Other
    /// certificates must be valid at `now`. If they are not, the former certificates and `clients` stay.
    #[must_use]
    pub fn as_reload_of(&self, before: &Listener, now: Timestamp) -> Listener {
        let tls = match (&self.tls, &before.tls) {
            (Some(tls), Some(known)) if !tls.is_set_alike(known) => Some(Arc::new(tls.replacing(known, now))),
            (_, known) => known.clone(),
        };
        let decide = match (&self.decide, &before.decide) {
            // The former TLS settings stay, and require no client certificates. Without `clients`, every peer could
            // ask. So the former `clients` stay.
            (Some(decide), Some(known))
                if decide.clients.is_none() && tls.as_ref().is_some_and(|tls| tls.keeps_former()) =>
            {
                Some(Decide { clients: known.clients.clone(), ..decide.clone() })
            }
            (decide, _) => decide.clone(),
        };
        Listener { tls, decide, ..before.clone() }
    }
}

/// The peers whose connections to a listener must begin with a PROXY protocol header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderSenders {
    /// No peer: connections have no PROXY protocol header.
    Nobody,
    /// Every peer. Each peer can claim any client address.
    Anyone,
    /// The peers in these networks. The listener closes connections of other peers.
    Networks(Vec<IpNet>),
}

static PROXY_PROTOCOL: Mapping = Mapping {
    heading: Some("key in `proxy_protocol`"),
    definition: None,
    keys: &[Key::required("from", SOME_NETWORKS.declared(), "The load balancers. Other connections are closed.")],
    constraints: unconstrained,
};

pub(crate) static LISTENER: Mapping = Mapping {
    heading: Some("key of a listener"),
    definition: None,
    keys: &[
        Key::depends(
            "name",
            NAME,
            "`http`, or the address if there are several",
            "Its name in rules and metrics: unique, 1 to 64 of `A-Za-z0-9_.-`.",
        ),
        Key::required("address", LISTEN_ADDRESS.declared(), "Where requests arrive. Each needs its own."),
        SOCKET_MODE_KEY,
        Key::default(
            "proxy_protocol",
            Type::Switch(&PROXY_PROTOCOL),
            "false",
            "Requires a PROXY protocol header, which names the client. `true` believes every host.",
        ),
        Key::optional("tls", Type::Mapping(&LISTENER_TLS), "Speaks TLS, with these certificates."),
        LISTENER_PROTOCOLS,
        DECIDE,
        CLIENTS,
        ORIGINAL_REQUEST_KEY,
        REFUSE_WITH_KEY,
        ANSWER_WITHIN,
    ],
    constraints: || {
        let mut constraints = listener_protocols::constraints();
        if let Some(constraints) = constraints.as_object_mut() {
            let dependencies = decide::constraints().chain([socket_mode::constraints()]);
            let dependencies = dependencies.map(|(name, needs)| (name.to_owned(), needs)).collect();
            constraints.insert("dependencies".to_owned(), Value::Object(dependencies));
        }
        constraints
    },
};

/// Reads the listeners of a file, from `listen` or `listeners`, and adds their addresses to `addresses`.
pub(crate) fn listeners(
    file: &Section<'_>,
    environment: Environment<'_>,
    addresses: &mut TakenAddresses,
) -> Option<Vec<Listener>> {
    let listen = file.value("listen", |field| {
        let address = LISTEN_ADDRESS.read(field.clone())?;
        match (file.has("listen"), file.has("listeners")) {
            // A placeholder for an unknown address is not compared with other addresses.
            (true, false) if file.is_unknown("listen") => {}
            (true, false) => addresses.take(&field, &address)?,
            (false, false) => addresses.take_default("listen", &address),
            (_, true) => {}
        }
        Some(address)
    });
    let listeners = file.optional("listeners", |field| several(&field, environment, addresses));
    if file.has("listen") {
        file.unwanted("listeners", "must not stand beside `listen`, which is short for one listener");
    }
    match (listen?, listeners?) {
        (_, Some(_)) if file.has("listen") => None,
        (_, Some(listeners)) => Some(listeners),
        (address, None) => Some(vec![Listener::plain(address)]),
    }
}

fn several(field: &Field<'_>, environment: Environment<'_>, addresses: &mut TakenAddresses) -> Option<Vec<Listener>> {
    let members = field.list_of_mappings()?;
    if members.is_empty() {
        field.must("have at least one listener");
        return None;
    }
    let (is_only, mut others) = (members.len() == 1, OtherListeners { names: HashSet::new(), addresses });
    all(members, |member| {
        let (name, listener) = listener(member, environment, &mut others)?;
        let unnamed = if is_only { ONLY_LISTENER.to_owned() } else { listener.address.to_string() };
        Some(Listener { name: name.unwrap_or(unnamed), ..listener })
    })
}

/// The names and addresses of the listeners that have been read. No two listeners may share a name or an address.
struct OtherListeners<'a> {
    names: HashSet<String>,
    addresses: &'a mut TakenAddresses,
}

fn listener(
    field: Field<'_>,
    environment: Environment<'_>,
    others: &mut OtherListeners<'_>,
) -> Option<(Option<String>, Listener)> {
    let section = field.section(&LISTENER)?;
    let name = section.optional("name", |field| unique_name(&field, &mut others.names));
    let address = section.need("address").and_then(|field| {
        let address = field.known_or("0.0.0.0:0", |field| LISTEN_ADDRESS.read(field))?;
        others.addresses.take(&field, &address)?;
        Some(address)
    });
    let socket_mode = socket_mode(&section, address.as_ref());
    let proxy_protocol = section.value("proxy_protocol", proxy_protocol);
    let protocols = listener_protocols(&section);
    // The files of `tls` are checked even if the protocols are invalid.
    let tls =
        section.optional("tls", |field| listener_tls(field, environment, protocols.as_deref().unwrap_or_default()));
    let decide = decide::decide(&section, tls.as_ref().map(Option::as_ref), proxy_protocol.as_ref());
    let needs_http2 = decide.as_ref().and_then(Option::as_ref).is_some_and(Decide::needs_http2);
    let protocols = match protocols {
        Some(protocols) if needs_http2 => listener_protocols::with_http2(&section, protocols),
        protocols => protocols,
    };
    section.close();
    let (name, address, socket_mode, tls) = (name?, address?, socket_mode?, tls?.map(Arc::new));
    let (proxy_protocol, protocols, decide) = (proxy_protocol?, protocols?, decide?);
    Some((name, Listener { name: String::new(), address, socket_mode, proxy_protocol, tls, protocols, decide }))
}

fn proxy_protocol(field: Field<'_>) -> Option<HeaderSenders> {
    if !field.is_map() {
        let on = field.boolean()?;
        return Some(if on { HeaderSenders::Anyone } else { HeaderSenders::Nobody });
    }
    let section = field.section(&PROXY_PROTOCOL)?;
    let from = section.need("from").and_then(|field| SOME_NETWORKS.read(field));
    section.close();
    Some(HeaderSenders::Networks(from?))
}
