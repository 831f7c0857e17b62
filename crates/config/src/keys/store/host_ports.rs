//! Reads lists of hosts with ports: `nodes` of `sentinel` and of `cluster`.

use serde_json::{Value, json};

use crate::language::reader::{Field, all};
use crate::language::value_types::reference;
use base::host_port::HostPort;

/// What differs between lists.
#[derive(Clone, Copy, Debug)]
pub struct HostPorts {
    /// What a host is, as in "at least one sentinel".
    pub member: &'static str,
    pub default_port: u16,
    /// What a member must be.
    pub shape: &'static str,
    /// What is said of one with a database, as a URL has it.
    pub no_database: &'static str,
}

impl HostPorts {
    pub fn schema(self) -> Value {
        json!({
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [
                {
                    "type": "string",
                    "pattern": r"^([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$",
                    "patternErrorMessage": format!("must {}", self.shape)
                },
                reference()
            ]}
        })
    }

    /// In place of an unknown host, one that every password may be sent to.
    pub fn read(self, field: &Field<'_>) -> Option<Vec<HostPort>> {
        let members = field.list()?;
        if members.is_empty() {
            field.must(format_args!("name at least one {}", self.member));
            return None;
        }
        all(members, |field| field.known_or("localhost", |field| self.host_port(field)))
    }

    fn host_port(self, field: Field<'_>) -> Option<HostPort> {
        let text = field.text()?;
        let host = HostPort::parse(text, self.default_port);
        if host.is_none() {
            let (_, after_scheme) = text.split_once("://").unwrap_or(("", text));
            let has_database = after_scheme.split_once('/').is_some_and(|(_, database)| !database.is_empty());
            let hint = has_database.then(|| self.no_database.to_owned());
            // A URL may hold a password.
            let field = if text.contains('@') { field.hidden() } else { field };
            field.must_hinting(self.shape, hint);
        }
        host
    }
}
