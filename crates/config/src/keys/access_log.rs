//! Reads `access_log`: which requests are logged, where, and with which attributes of the client.

use std::path::PathBuf;

use crate::keys::rules::attribute::AttributeReader;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, names, unconstrained};
use crate::language::reader::{Field, all};
use crate::language::shape::{List, Shape};
use crate::language::suggest::nearest;
use crate::language::value_kind::{ReadField, ValueKind};
use decision::access_log_line::Kind;
use request::attribute::Attribute;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    pub to: Destination,
    pub when: Vec<Kind>,
    /// The attributes whose values are logged as pseudonyms.
    pub attributes: Vec<LoggedAttribute>,
    /// The attributes whose values are logged in clear text.
    pub values: Vec<LoggedAttribute>,
}

impl AccessLog {
    /// Whether the access log shows descriptors. A descriptor is a value that another proxy sends when it asks for a decision.
    pub fn has_descriptors(&self) -> bool {
        self.attributes.iter().chain(&self.values).any(|listed| matches!(listed.attribute, Attribute::Descriptor(_)))
    }
}

/// The place to which the access log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Stdout,
    Stderr,
    File(PathBuf),
}

/// An attribute that the access log shows, with its name in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedAttribute {
    /// The name of the attribute, as the log line shows it.
    pub text: String,
    pub attribute: Attribute,
}

/// Reads the lists of attributes that the access log shows. `credentials` are the attributes with credentials.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedAttributeReader<'k> {
    pub attributes: AttributeReader<'k>,
    pub credentials: &'k [Attribute],
}

/// Headers that always contain credentials.
pub(crate) const SECRET_HEADERS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "set-cookie"];

const KINDS: [(&str, &[Kind]); 4] =
    [("allowed", &[Kind::Allowed]), ("refused", &[Kind::Refused]), ("error", &[Kind::Error]), ("all", &Kind::ALL)];

type ReadTo = fn(Field<'_>, Environment<'_>) -> Option<Destination>;

const TO: ValueKind<ReadTo> = ValueKind::new(
    "`stdout`, `stderr`, or a path",
    Shape::NonEmptyText { must: "be stdout, stderr or a path" },
    destination,
);

const WHEN: ValueKind<ReadField<Vec<Kind>>> = ValueKind::new(
    "`all`, or a list of `allowed`, `refused`, `error`",
    Shape::OneOrList(List::non_empty(
        &Shape::Words(&names(&KINDS)),
        "have at least one of allowed, refused, error, or be all",
    )),
    kinds,
);

type ReadAttributes = fn(Field<'_>, LoggedAttributeReader<'_>) -> Option<Vec<LoggedAttribute>>;

const ATTRIBUTE: Shape = Shape::text(
    &[
        "^((jwt|query|cookie|descriptor):[^|(]+|header:[!#$%&'*+.^_`~0-9A-Za-z-]+|key:[A-Za-z0-9_.-]{1,64}|ip:address|method|host|scheme|listener|tls:(sni|client_(fingerprint|subject|dns|uri))|path|path_segment:([1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])|route|upstream|door)$",
    ],
    "be one attribute like jwt:plan, header:x-user or ip:address",
);

const ATTRIBUTES: ValueKind<ReadAttributes> =
    ValueKind::new("list of attributes, at most 16", Shape::List(logged(&ATTRIBUTE)), attributes);

const VALUE: Shape = Shape::text(
    &[
        r"^(clear\(jwt:[^|()]+\)|(query|descriptor):[^|(]+|header:[!#$%&'*+.^_`~0-9A-Za-z-]+|key:(id|plan)|ip:address|scheme|listener|tls:(sni|client_(fingerprint|subject|dns|uri))|method|host|path|path_segment:([1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])|route|upstream|door)$",
    ],
    "be one attribute like path, header:user-agent or clear(jwt:sub) that is no credential",
);

const VALUES: ValueKind<ReadAttributes> = ValueKind::new(
    "list of attributes, at most 16, claims only as `clear(jwt:<claim>)`",
    Shape::List(logged(&VALUE)),
    values,
);

/// Declares a list of logged attributes. The list must be short: each attribute costs a hash for every log line.
const fn logged(of: &'static Shape) -> List {
    List { most: 16, members: "attributes", unique: true, ..List::of(of) }
}

pub(crate) static ACCESS_LOG: Mapping = Mapping {
    heading: Some("key in `access_log`"),
    definition: None,
    keys: &[
        Key::required("to", TO.declared(), "Where lines go. A missing file is created with mode 0640."),
        Key::default("when", WHEN.declared(), "all", "Which requests are logged."),
        Key::default("attributes", ATTRIBUTES.declared(), "[]", "Attributes that a line has as pseudonyms."),
        Key::default("values", VALUES.declared(), "[]", "Attributes that a line has as they are."),
    ],
    constraints: unconstrained,
};

pub(crate) fn access_log(
    field: Field<'_>,
    reader: LoggedAttributeReader<'_>,
    environment: Environment<'_>,
) -> Option<AccessLog> {
    let section = field.section(&ACCESS_LOG)?;
    let to = section
        .need("to")
        .and_then(|field| field.known_or("stdout", |field| (TO.checked(&field)?)(field, environment)));
    let when = section.value("when", |field| WHEN.read(field));
    let attributes = section.value("attributes", |field| (ATTRIBUTES.checked(&field)?)(field, reader));
    let values = section.value("values", |field| (VALUES.checked(&field)?)(field, reader));
    section.close();
    Some(AccessLog { to: to?, when: when?, attributes: attributes?, values: values? })
}

fn destination(field: Field<'_>, environment: Environment<'_>) -> Option<Destination> {
    const STREAMS: [&str; 2] = ["stdout", "stderr"];
    let text = field.text()?;
    match text {
        "stdout" => Some(Destination::Stdout),
        "stderr" => Some(Destination::Stderr),
        // A file name that resembles the name of a stream is rejected, because it is probably a typing error.
        text => match nearest(text, &STREAMS) {
            None => Some(Destination::File(environment.folder.join(text))),
            Some(hint) => {
                let hint = format!("{hint} For a file of that name write `./{text}`");
                field.must_hinting("be stdout, stderr or a path", Some(hint));
                None
            }
        },
    }
}

fn kinds(field: Field<'_>) -> Option<Vec<Kind>> {
    let chosen = all(field.one_or_list()?, |member| member.choice(&KINDS))?.concat();
    Some(Kind::ALL.into_iter().filter(|kind| chosen.contains(kind)).collect())
}

fn attributes(field: Field<'_>, reader: LoggedAttributeReader<'_>) -> Option<Vec<LoggedAttribute>> {
    logged_attributes(field, &ATTRIBUTE, reader, |member, text| {
        if let Some(claim) = in_clear(text) {
            let hint = format!("clear() is for `values`; here list {} itself", claim.escape_debug());
            member.must_hinting("be one attribute", Some(hint));
            return None;
        }
        read_one(member, text, reader)
    })
}

fn values(field: Field<'_>, reader: LoggedAttributeReader<'_>) -> Option<Vec<LoggedAttribute>> {
    logged_attributes(field, &VALUE, reader, |member, text| {
        let claim = in_clear(text);
        let attribute = read_one(member, claim.unwrap_or(text), reader)?;
        let is_secret = match &attribute {
            Attribute::Claim(_) => claim.is_none(),
            _ if claim.is_some() => {
                let hint = "clear() is for claims; list other attributes by themselves".to_owned();
                member.must_hinting("be clear(jwt:<claim>)", Some(hint));
                return None;
            }
            Attribute::Header(name) => SECRET_HEADERS.contains(&name.as_str()),
            Attribute::Words(_) | Attribute::ClaimedAmount(_) | Attribute::Cookie(_) | Attribute::KeyColumn(_) => true,
            _ => false,
        };
        if is_secret || reader.credentials.contains(&attribute) {
            let in_clear = match &attribute {
                Attribute::Claim(_) => format!("; clear({attribute}) in `values` logs it as it is"),
                _ => String::new(),
            };
            let hint = format!("`attributes` logs it as a pseudonym{in_clear}");
            member.wrong(format_args!("`{attribute}` may be a credential, or come from one"), Some(hint));
            return None;
        }
        Some(attribute)
    })
}

/// Returns what stands in `clear(…)`, with which the operator says that the log may have a claim as it is.
fn in_clear(text: &str) -> Option<&str> {
    text.strip_prefix("clear(")?.strip_suffix(')')
}

/// Reads one attribute, without alternatives or functions.
pub(crate) fn read_one(member: &Field<'_>, text: &str, reader: LoggedAttributeReader<'_>) -> Option<Attribute> {
    let hint = if let Some(claim) = text.strip_prefix("words(").and_then(|text| text.strip_suffix(')')) {
        format!("words() is for `match` alone; list {} itself", claim.trim().escape_debug())
    } else if text.contains(['|', '(']) {
        "alternatives, lower() and trim() are for rules; list each attribute by itself".to_owned()
    } else {
        return reader.attributes.attribute(member, text);
    };
    member.must_hinting("be one attribute", Some(hint));
    None
}

/// Reads a list of attributes. `read` reads one attribute, and reports why an attribute is invalid.
pub(crate) fn logged_attributes(
    field: Field<'_>,
    shape: &Shape,
    reader: LoggedAttributeReader<'_>,
    read: impl Fn(&Field<'_>, &str) -> Option<Attribute>,
) -> Option<Vec<LoggedAttribute>> {
    let members = field.list()?;
    let mut listed = Vec::new();
    all(members, |member| {
        let text = reader.attributes.text(&member)?;
        let attribute = read(&member, text)?;
        member.check(shape)?;
        let text = attribute.to_string();
        if listed.contains(&text) {
            member.wrong(format_args!("`{text}` is listed twice"), None);
            return None;
        }
        listed.push(text.clone());
        Some(LoggedAttribute { text, attribute })
    })
}
