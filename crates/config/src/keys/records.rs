//! Reads `records`: for which meters lines for billing are written, where, how often, and whom they name.

use crate::keys::access_log::{
    Destination, LoggedAttribute, LoggedAttributeReader, SECRET_HEADERS, logged_attributes, read_one,
};
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::{Field, all};
use crate::language::shape::{Duration, List, Scalars, Shape, Text};
use crate::language::suggest::nearest;
use crate::language::value_kind::{ParseText, ReadField, ValueKind};
use crate::language::value_types::NAME;
use base::time::Micros;
use ledger::algorithm::thresholds::{MOST_THRESHOLDS, Thresholds};
use request::attribute::Attribute;
use rules::rule::{Action, Limit, Policy};

/// The settings of the records for billing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    pub to: Destination,
    /// The length of the interval of which a line has the sums.
    pub every: Micros,
    /// The meters whose use is recorded, in the order of the file.
    pub meters: Vec<String>,
    /// The attributes that name who has used something. The first that a request has is taken.
    pub subject: Vec<LoggedAttribute>,
    /// The shares of the meters' limits that are reported once in a period. Usually none.
    pub thresholds: Thresholds,
}

impl Records {
    /// Whether this attribute names subjects.
    pub fn names(&self, attribute: &str) -> bool {
        self.subject.iter().any(|subject| &*subject.text == attribute)
    }
}

/// What the reader of `records` needs of other keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordsReader<'k> {
    pub logged: LoggedAttributeReader<'k>,
    /// The policies of the file. `None` if they are invalid, which has been reported.
    pub policies: Option<&'k [Policy]>,
    /// Where the access log is written. `None` without an access log.
    pub access_log: Option<&'k Destination>,
    pub environment: Environment<'k>,
}

/// A killed gateway loses the lines of its last interval, so an interval is not longer.
const LONGEST: Micros = Micros(86_400_000_000);
const SHORTEST: Micros = Micros(1_000_000);

type ReadTo = fn(Field<'_>, Environment<'_>) -> Option<Destination>;

const TO: ValueKind<ReadTo> = ValueKind::new("`stdout`, or a path", Shape::NonEmptyText { must: TO_MUST }, destination);

const TO_MUST: &str = "be stdout or a path";

const EVERY: ValueKind<ReadField<Micros>> = ValueKind::new(
    "duration from `1s` to `1d`",
    Shape::Duration(Duration::within(SHORTEST, LONGEST, "be a duration from 1s to 1d")),
    |field| field.duration(),
);

const METERS: Type = Type::Own {
    text: "list of meters",
    shape: Shape::List(List { unique: true, ..List::non_empty(&NAME, "have at least one meter") }),
};

const SHARE: Shape =
    Shape::Text(Text::new(Scalars::Spelling, &["^0*([1-9][0-9]?|100)%$"], "be a share from 1% to 100%"));

const THRESHOLD: ValueKind<ParseText<u8>> =
    ValueKind::new("`1%` to `100%`", SHARE, |text| text.strip_suffix('%')?.parse().ok());

const SHARES: Shape = Shape::List(List {
    most: MOST_THRESHOLDS,
    members: "shares",
    unique: true,
    ..List::non_empty(&SHARE, "have at least one share, such as 80%")
});

const THRESHOLDS: Type = Type::Own { text: "list of 1 to 6 shares", shape: SHARES };

type ReadSubject = fn(Field<'_>, LoggedAttributeReader<'_>) -> Option<Vec<LoggedAttribute>>;

const ATTRIBUTE: Shape = Shape::text(
    &[
        "^((jwt|query|descriptor):[^|(]+|header:[!#$%&'*+.^_`~0-9A-Za-z-]+|key:[A-Za-z0-9_.-]{1,64}|ip:address|host|listener|tls:(sni|client_(fingerprint|subject|dns|uri)))$",
    ],
    "be one attribute like key:id or jwt:sub that names a customer",
);

const SUBJECT: ValueKind<ReadSubject> = ValueKind::new(
    "list of 1 to 4 attributes",
    Shape::List(List {
        most: 4,
        members: "attributes",
        unique: true,
        ..List::non_empty(&ATTRIBUTE, "have at least one attribute, such as key:id")
    }),
    subject,
);

pub(crate) static RECORDS: Mapping = Mapping {
    heading: Some("key in `records`"),
    definition: None,
    keys: &[
        Key::required(
            "to",
            TO.declared(),
            "Where lines go, not where the access log goes. A missing file is created with mode 0640.",
        ),
        Key::default("every", EVERY.declared(), "1m", "The interval of which a line has the sums."),
        Key::required("meters", METERS, "The meters whose use is recorded."),
        Key::required(
            "subject",
            SUBJECT.declared(),
            "Who has used it: the first of these that the request has, as it is and not as a pseudonym.",
        ),
        Key::optional(
            "thresholds",
            THRESHOLDS,
            "Shares of a `fixed_window`, each with a line when a subject has used so much of it in a period.",
        ),
    ],
    constraints: unconstrained,
};

pub(crate) fn records(field: Field<'_>, reader: RecordsReader<'_>) -> Option<Records> {
    let section = field.section(&RECORDS)?;
    let to = section.need("to").and_then(|field| {
        field.known_or("stdout", |field| {
            let to = (TO.checked(&field)?)(field.clone(), reader.environment)?;
            if reader.access_log == Some(&to) {
                field.wrong("must not be where `access_log` is written", None);
                return None;
            }
            Some(to)
        })
    });
    let every = section.value("every", |field| EVERY.read(field));
    let meters = section.need("meters").and_then(|field| meters(&field, reader.policies));
    let subject = section.need("subject").and_then(|field| (SUBJECT.checked(&field)?)(field, reader.logged));
    let thresholds = section
        .optional("thresholds", |field| thresholds(&field, meters.as_deref().unwrap_or_default(), reader.policies));
    section.close();
    let thresholds = thresholds?.unwrap_or_default();
    Some(Records { to: to?, every: every?, meters: meters?, subject: subject?, thresholds })
}

/// Reads the shares. Only fixed windows have periods, so all of the meters must be ones of fixed windows.
fn thresholds(field: &Field<'_>, meters: &[String], policies: Option<&[Policy]>) -> Option<Thresholds> {
    field.check(&SHARES)?;
    let shares = all(field.list()?, |member| THRESHOLD.read(member))?;
    let is_other = |limit: &&Limit| {
        limit.meter.as_ref().is_some_and(|meter| meters.contains(meter)) && limit.algorithm.window().is_none()
    };
    if let Some(limit) = limits(policies).find(is_other) {
        let meter = limit.meter.as_deref().unwrap_or_default();
        let what =
            format_args!("is only for a `fixed_window`, and the meter `{meter}` is a {}", limit.algorithm.name());
        field.wrong(what, Some("a threshold is reported once in a period".to_owned()));
        return None;
    }
    let is_global = |limit: &&Limit| {
        limit.meter.as_ref().is_some_and(|meter| meters.contains(meter)) && limit.algorithm.kind().is_purse()
    };
    if let Some(limit) = limits(policies).find(is_global) {
        let meter = limit.meter.as_deref().unwrap_or_default();
        let what = format_args!("is not for a limit with `scope: global`, and the meter `{meter}` has one");
        field.wrong(what, Some("no region sees when all regions together have used so much".to_owned()));
        return None;
    }
    Thresholds::new(&shares)
}

/// Returns the limits of all rules.
fn limits(policies: Option<&[Policy]>) -> impl Iterator<Item = &Limit> {
    let rules = policies.unwrap_or_default().iter().flat_map(|policy| &policy.rules);
    rules.flat_map(|rule| if let Action::Charge(limits) = &rule.action { limits.as_slice() } else { &[] })
}

fn destination(field: Field<'_>, environment: Environment<'_>) -> Option<Destination> {
    let text = field.text()?;
    let meant = match text {
        "stdout" => return Some(Destination::Stdout),
        "stderr" => Some("diagnostics go to standard error.".to_owned()),
        text => nearest(text, &["stdout"]),
    };
    // A file name that resembles the name of a stream is rejected, because it is probably a typing error.
    let Some(meant) = meant else { return Some(Destination::File(environment.folder.join(text))) };
    field.must_hinting(TO_MUST, Some(format!("{meant} For a file of that name write `./{text}`")));
    None
}

fn meters(field: &Field<'_>, policies: Option<&[Policy]>) -> Option<Vec<String>> {
    let limits = || limits(policies);
    let is_of = |limit: &Limit, name: &str| limit.meter.as_deref() == Some(name);
    let members = field.list()?;
    if members.is_empty() {
        field.must("have at least one meter");
        return None;
    }
    let mut names: Vec<String> = Vec::new();
    all(members, |member| {
        member.check(&NAME)?;
        let name = member.written()?;
        if names.iter().any(|listed| listed == name) {
            member.wrong(format_args!("`{name}` is listed twice"), None);
            return None;
        }
        names.push(name.to_owned());
        policies?;
        let Some(limit) = limits().find(|limit| is_of(limit, name)) else {
            let known: Vec<&str> = limits().filter_map(|limit| limit.meter.as_deref()).collect();
            let hint = nearest(name, &known)
                .unwrap_or_else(|| "`meter` of a rule, or of one of its limits, names it".to_owned());
            member.wrong(format_args!("`{name}` is no meter of a rule"), Some(hint));
            return None;
        };
        if limit.algorithm.slots().is_some() {
            member.wrong(format_args!("`{name}` counts requests in flight, of which nothing is spent"), None);
            return None;
        }
        Some(())
    })?;
    Some(names)
}

fn subject(field: Field<'_>, reader: LoggedAttributeReader<'_>) -> Option<Vec<LoggedAttribute>> {
    logged_attributes(field, &ATTRIBUTE, reader, |member, text| {
        let attribute = read_one(member, text, reader)?;
        let is_secret = matches!(&attribute, Attribute::Header(name) if SECRET_HEADERS.contains(&name.as_str()));
        if is_secret || reader.credentials.contains(&attribute) {
            let hint = "name who holds it, for instance with key:id or jwt:sub".to_owned();
            member.wrong(format_args!("`{attribute}` is a credential, and a record shows it as it is"), Some(hint));
            return None;
        }
        Some(attribute)
    })
}
