//! Reads `client_ip`: how the client's address is determined.

use crate::keys::network_list::NETWORKS;
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::Field;
use identity::client_ip::Settings;

pub(crate) static CLIENT_IP: Mapping = Mapping {
    heading: Some("key in `client_ip`"),
    definition: None,
    keys: &[
        Key::default("trusted_proxies", NETWORKS.declared(), "[]", "The peers whose `X-Forwarded-For` is believed."),
        Key::default(
            "ipv6_prefix",
            Type::Whole { least: 1, most: 128 },
            "64",
            "Bits of an IPv6 address that identify one client.",
        ),
    ],
    constraints: unconstrained,
};

pub(crate) fn client_ip(field: Field<'_>) -> Option<Settings> {
    let section = field.section(&CLIENT_IP)?;
    let trusted_proxies = section.value("trusted_proxies", |field| NETWORKS.read(field));
    let ipv6_prefix = section.whole("ipv6_prefix");
    section.close();
    Some(Settings { trusted_proxies: trusted_proxies?, ipv6_prefix: u8::try_from(ipv6_prefix?).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::problem::Report;
    use crate::language::tree;

    #[test]
    fn the_declared_defaults_are_those_of_the_settings() {
        let report = Report::default();
        let tree = tree::read(b"{}", &report).unwrap();
        let (read, default) = (client_ip(Field::root(&tree, &report)).unwrap(), Settings::default());
        assert_eq!((read.trusted_proxies, read.ipv6_prefix), (default.trusted_proxies, default.ipv6_prefix));
    }
}
