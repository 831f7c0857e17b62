//! Reads the names of attributes in all places of the file.

use crate::keys::listeners::Listener;
use crate::language::quotes::is_kind_of_attribute;
use crate::language::reader::Field;
use crate::language::suggest::{nearest_name, nearest_spelling};
use crate::language::tree::Value;
use base::tls::server::ClientAuth;
use request::attribute::{Attribute, AttributeError, Folding, MAX_PATH_SEGMENT, SPELLINGS, WORDS_SPELLING};
use request::door::Door;

/// Reads the names of attributes. The fields of this reader say which kinds of credentials the file verifies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeReader<'k> {
    /// Whether the file has `jwt`, so that attributes may come from tokens.
    pub jwt: bool,
    /// Whether the file has `api_keys`, so that attributes may come from API keys.
    pub api_keys: bool,
    pub tls: TlsAttributes,
    /// The columns of the file with the API keys, without the columns for id and plan. `None` if that file is invalid.
    pub columns: Option<&'k [String]>,
}

/// The hint that lists the functions of attributes.
const FUNCTIONS: &str = "functions are lower(ATTRIBUTE) and trim(ATTRIBUTE), in limit_keys, match, exempt, by and split_by, and \
                         words(jwt:CLAIM), in match";

/// Returns how the file must write the attribute that has the name `text` in other programs.
fn other_name(text: &str) -> Option<String> {
    let name = text.to_ascii_lowercase().replace('-', "_");
    Some(match &*name {
        "ip" | "address" | "client_ip" | "remote_addr" | "remote_address" | "source_ip" => "ip:address".to_owned(),
        "sub" | "subject" | "user" | "user_id" => "jwt:sub".to_owned(),
        "key" | "api_key" | "apikey" | "consumer" => "key:id".to_owned(),
        "plan" | "tier" => "key:plan".to_owned(),
        "uri" | "url" => "path".to_owned(),
        _ if name.starts_with("x_") => format!("header:{}", text.to_ascii_lowercase()),
        _ => return None,
    })
}

/// Hints for words that other programs have in place of an attribute.
const OF_CONDITIONS: [(&[&str], &str); 4] = [
    (&["path_prefix", "prefix", "uri_prefix"], "write `path: /x/*`, which is /x and what is below"),
    (
        &["any", "or", "any_of", "one_of"],
        "write a list of texts, of which one must match, or one rule for each of several conditions",
    ),
    (&["all", "and", "all_of"], "write the conditions beside each other: all of them must hold"),
    (&["not"], "write `not` below an attribute: `path: {not: /x}`"),
];

fn of_conditions(text: &str) -> Option<String> {
    OF_CONDITIONS.iter().find(|(words, _)| words.contains(&text)).map(|(_, hint)| (*hint).to_owned())
}

/// Returns the hint for the kind of an attribute with its name in a mapping, such as `header: {x-plan: gold}`. Values are not shown.
fn of_mapping(text: &str, field: &Field<'_>) -> Option<String> {
    let first = field.entries().first().filter(|_| is_kind_of_attribute(text))?;
    Some(format!("write `{text}:{}: …`", first.shown_key().escape_debug()))
}

/// Returns the attribute that has another separator in place of its colon, such as `jwt.plan`.
fn with_colon(text: &str) -> Option<String> {
    let possible = ['.', '_', '-', '/', '='].into_iter().filter_map(|separator| text.split_once(separator));
    let mut attributes =
        possible.filter(|(kind, _)| is_kind_of_attribute(kind)).map(|(kind, name)| format!("{kind}:{name}"));
    attributes.find(|name| Attribute::parse(name).is_ok())
}

/// The TLS attributes, such as `tls:sni`, that the file's listeners can supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsAttributes {
    /// The listeners supply no TLS attribute, because no listener has `tls`.
    Missing,
    /// The listeners supply only the server name, because no listener asks clients for certificates.
    ServerName,
    All,
}

impl TlsAttributes {
    pub(crate) fn of(listeners: &[Listener]) -> TlsAttributes {
        // Over ext_authz, another proxy may report the TLS attributes of its own connections.
        if listeners.iter().any(|listener| listener.doors().contains(&Door::ExtAuthz)) {
            return TlsAttributes::All;
        }
        let mut servers = listeners.iter().filter_map(|listener| listener.tls.as_ref()).peekable();
        if servers.peek().is_none() {
            return TlsAttributes::Missing;
        }
        let asks = servers.any(|tls| tls.settings().certificates.iter().any(|one| one.client_auth != ClientAuth::Off));
        if asks { TlsAttributes::All } else { TlsAttributes::ServerName }
    }
}

impl AttributeReader<'_> {
    /// Returns the attribute with the name `text`. `None` after reporting at `field` that the file cannot use it.
    pub(crate) fn attribute(&self, field: &Field<'_>, text: &str) -> Option<Attribute> {
        let attribute = self.attribute_of_rule(field, text)?;
        if !attribute.folding().is_none() {
            field.wrong(format_args!("`{attribute}` is not an attribute"), Some(FUNCTIONS.to_owned()));
            return None;
        }
        if attribute.needs_body() {
            let hint = "bodies are read for `match`, `limit_keys` and `exempt`";
            field.wrong(format_args!("`{attribute}` is not known here"), Some(hint.to_owned()));
            return None;
        }
        Some(attribute)
    }

    /// Returns the attribute with the name `text` as [`Self::attribute`] does, even if its value is in the body.
    pub(crate) fn attribute_of_rule(&self, field: &Field<'_>, text: &str) -> Option<Attribute> {
        let why = match Attribute::parse(text) {
            Ok(attribute) => return self.verified(field, attribute),
            Err(why) => why,
        };
        let text = Folding::split(text).1.escape_debug();
        match why {
            AttributeError::Unknown => {
                let text = text.to_string();
                let hint =
                    other_name(&text).or_else(|| with_colon(&text)).map(|name| format!("did you mean `{name}`?"));
                let hint = hint.or_else(|| of_mapping(&text, field)).or_else(|| of_conditions(&text));
                let hint = hint.or_else(|| nearest_spelling(&text, SPELLINGS));
                let hint = hint.or_else(|| text.contains('(').then(|| FUNCTIONS.to_owned()));
                let hint = hint.unwrap_or_else(|| format!("attributes are {}", SPELLINGS.join(", ")));
                field.wrong(format_args!("`{text}` is not an attribute"), Some(hint));
            }
            AttributeError::WordsOfOther => {
                let hint = Some(format!("write {WORDS_SPELLING}"));
                field.wrong(format_args!("`{text}`: only a claim is split into words"), hint);
            }
            AttributeError::NameMissing => field.wrong(format_args!("`{text}` must have a name after the colon"), None),
            AttributeError::BadSegment => {
                let hint = Some("the first segment of /v1/users is path_segment:1".to_owned());
                field
                    .wrong(format_args!("`{text}` must be path_segment:<n>, with n from 1 to {MAX_PATH_SEGMENT}"), hint)
            }
            AttributeError::BadPointer(invalid) => {
                field.wrong(format_args!("`{text}`: the JSON pointer {invalid}"), None);
            }
            AttributeError::BadHeaderName => {
                field.wrong(format_args!("`{text}` must name a header that can exist"), None)
            }
        }
        None
    }

    /// Returns the text of a value that names attributes. `None` after reporting another value.
    pub(crate) fn text<'t>(&self, field: &Field<'t>) -> Option<&'t str> {
        if let [only] = field.entries()
            && is_kind_of_attribute(&only.key)
            && let Value::Scalar(name) = &only.value.value
        {
            let hint =
                format!("an attribute has no space after its colon: `{}:{}`", only.key, name.text.escape_debug());
            field.must_hinting("be text", Some(hint));
            return None;
        }
        field.text()
    }

    /// Returns an attribute if it is usable: the file must say how to verify the credential of the attribute.
    fn verified(&self, field: &Field<'_>, attribute: Attribute) -> Option<Attribute> {
        if let Attribute::KeyColumn(name) = attribute.source()
            && let Some((column, value)) = name.split_once(':')
        {
            let (column, value) = (column.escape_debug(), value.escape_debug());
            let hint =
                format!("did you mean `key:{column}`? A value stands behind it in `match`: `key:{column}: {value}`");
            field.wrong(format_args!("`{attribute}` is not an attribute"), Some(hint));
            return None;
        }
        let (kind, source, there) = match attribute.source() {
            Attribute::Claim(_) | Attribute::Words(_) | Attribute::ClaimedAmount(_) => ("jwt:", "jwt", self.jwt),
            Attribute::KeyId | Attribute::KeyPlan | Attribute::KeyColumn(_) => ("key:", "api_keys", self.api_keys),
            Attribute::TlsServerName if self.tls == TlsAttributes::Missing => {
                field.wrong(format_args!("`{attribute}`: a `tls:` attribute needs a listener with `tls`"), None);
                return None;
            }
            Attribute::TlsClient(_) if self.tls != TlsAttributes::All => {
                let hint = Some("set `client_auth` of one of its certificates".to_owned());
                field.wrong(format_args!("`{attribute}` needs a listener that asks clients for certificates"), hint);
                return None;
            }
            _ => return Some(attribute),
        };
        if !there {
            field.wrong(format_args!("`{attribute}`: a `{kind}` attribute needs `{source}`, which is missing"), None);
            return None;
        }
        match (attribute.source(), self.columns) {
            (Attribute::KeyColumn(name), Some(columns)) if !columns.contains(name) => {
                let known: Vec<&str> = ["id", "plan"].into_iter().chain(columns.iter().map(|name| &**name)).collect();
                let name = name.escape_debug().to_string();
                let hint = match nearest_name(&name, &known) {
                    Some(similar) => format!("did you mean `key:{similar}`?"),
                    None => format!("its first line names its columns: #columns {} …", known.join(" ")),
                };
                field.wrong(format_args!("`key:{name}`: the file of keys has no column `{name}`"), Some(hint));
                None
            }
            _ => Some(attribute),
        }
    }
}
