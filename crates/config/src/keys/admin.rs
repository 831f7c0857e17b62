//! Reads `admin`: the address of the admin listener, and who may change buckets through it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use crate::keys::listeners::socket_path::{PATH_PATTERN, PATH_SHAPE, socket_path};
use crate::keys::listeners::taken_addresses::TakenAddresses;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, PATH, SOCKET_ADDRESS, Type, unconstrained};
use crate::language::reader::Field;
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types;
use base::endpoint_address::EndpointAddress;
use base::position::Position;
use base::secret::Secret;

/// The shortest token, in bytes. A shorter one could be guessed.
const SHORTEST_TOKEN: usize = 16;
/// The longest name of a token, in bytes.
const LONGEST_NAME: usize = 80;

/// The settings of the admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    pub address: SocketAddr,
    pub write: Option<AdminWrite>,
}

/// Who may change buckets through the admin listener, if not everybody who reaches its loopback address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminWrite {
    /// Clients that can connect to this socket, and none at the address.
    Unix(Arc<Path>),
    /// Clients that send one of these tokens.
    Tokens(Vec<AdminToken>),
}

/// A token with which somebody may change buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminToken {
    /// Who has the token, for the log.
    pub name: String,
    pub token: Secret,
}

const SOCKET: ValueKind<ParseText<Arc<Path>>> = ValueKind::new(
    "absolute path",
    Shape::Text(Text::new(Scalars::Spelling, &[PATH_PATTERN], PATH_SHAPE)),
    socket_path,
);

pub(crate) static ADMIN: Mapping = Mapping {
    heading: Some("key in `admin`"),
    definition: None,
    keys: &[
        Key::required("address", SOCKET_ADDRESS, "The address, as in `admin: 127.0.0.1:9901`."),
        Key::optional(
            "write",
            Type::Mapping(&WRITE),
            "Who may reset, grant, ban and raise. Without it: everybody on a loopback address, nobody on another.",
        ),
    ],
    constraints: unconstrained,
};

static WRITE: Mapping = Mapping {
    heading: Some("key in `admin.write`, of which there is one"),
    definition: None,
    keys: &[
        Key::optional(
            "unix",
            SOCKET.declared(),
            "Through this socket only, of mode 0660. The log has the name of the user at its other end.",
        ),
        Key::optional("token_file", PATH, "With `Authorization: Bearer TOKEN`. Each line of the file is `NAME TOKEN`."),
    ],
    constraints: || json!({"minProperties": 1, "maxProperties": 1}),
};

/// The type of `admin`: an address, or a mapping that has it.
pub(crate) const ADMIN_TYPE: Type =
    Type::OwnOr { text: "IP address with port, or mapping", shape: value_types::SOCKET_ADDRESS, mapping: &ADMIN };

pub(crate) fn admin(field: &Field<'_>, environment: Environment<'_>, addresses: &mut TakenAddresses) -> Option<Admin> {
    let mut address = |field: Field<'_>| {
        let address = field.socket_address()?;
        addresses.take(&field, &address.into()).map(|()| address)
    };
    if !field.is_map() {
        return address(field.clone()).map(|address| Admin { address, write: None });
    }
    let section = field.clone().section(&ADMIN)?;
    let address = section.need("address").and_then(&mut address);
    let write = section.optional("write", |field| {
        let section = field.clone().section(&WRITE)?;
        let unix = section.optional("unix", |field| {
            let path = SOCKET.read(field.clone())?;
            addresses.take(&field, &EndpointAddress::Unix(Arc::clone(&path))).map(|()| path)
        });
        let tokens = section.optional("token_file", |field| tokens(&field, environment));
        section.close();
        match (unix?, tokens?) {
            (Some(path), None) => Some(AdminWrite::Unix(path)),
            (None, Some(tokens)) => Some(AdminWrite::Tokens(tokens)),
            (Some(_), Some(_)) | (None, None) => {
                field.must("have one of `unix` and `token_file`");
                None
            }
        }
    });
    section.close();
    Some(Admin { address: address?, write: write? })
}

/// Reads the file of tokens. If its content is unknown here, nobody has a token.
fn tokens(field: &Field<'_>, environment: Environment<'_>) -> Option<Vec<AdminToken>> {
    let Some(content) = environment.secret_content(field)? else { return Some(Vec::new()) };
    let Ok(text) = std::str::from_utf8(&content) else {
        field.wrong("must be a file of UTF-8 text", None);
        return None;
    };
    let mut tokens: Vec<AdminToken> = Vec::new();
    let mut is_valid = true;
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match token(text, &tokens) {
            Ok(token) => tokens.push(token),
            Err(what) => {
                let file = field.written().unwrap_or_default();
                field.elsewhere(file, Some(Position { line, column: 1 }), what);
                is_valid = false;
            }
        }
    }
    if tokens.is_empty() && is_valid {
        field.wrong("must be a file with at least one line `NAME TOKEN`", None);
        return None;
    }
    is_valid.then_some(tokens)
}

/// Reads a line of the file of tokens, after these tokens.
///
/// # Errors
/// If the line is no name and token, or if an earlier line has one of them. The message does not show the token.
fn token(line: &str, before: &[AdminToken]) -> Result<AdminToken, String> {
    let mut words = line.split_ascii_whitespace();
    let (Some(name), Some(token), None) = (words.next(), words.next(), words.next()) else {
        return Err("must be a name and a token, with a space between them".to_owned());
    };
    let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_visible(name) || name.len() > LONGEST_NAME {
        return Err(format!("the name must be at most {LONGEST_NAME} visible ASCII characters"));
    }
    if !is_visible(token) || token.len() < SHORTEST_TOKEN {
        return Err(format!("the token must be at least {SHORTEST_TOKEN} visible ASCII characters"));
    }
    let token = AdminToken { name: name.to_owned(), token: Secret::new(token) };
    match before.iter().find(|other| other.token == token.token || other.name == token.name) {
        Some(other) => Err(format!("the name or the token is that of `{}` too", other.name)),
        None => Ok(token),
    }
}
