//! Maps the fields of foreign JSON lines to attributes.

use base::printable::Printable;
use request::attribute::{Attribute, AttributeError, SPELLINGS};

/// One entry of a field map, such as `jwt:sub=user.id`: an attribute, and the field of the log that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldMapping {
    pub target: Target,
    /// The name of the field as the operator writes it. Dots separate the names of nested objects.
    pub field: String,
}

/// The content of a field in a log: the time, a status of the response, or the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Time,
    Status,
    GrpcStatus,
    Attribute(Attribute),
}

/// A checked field map: the field with the time, and the field of each mapped attribute.
#[derive(Debug)]
pub struct FieldMap {
    pub time: String,
    /// The field with the status of the response. `None` if it is not mapped.
    pub status: Option<String>,
    /// The field with the value of `grpc-status`. `None` if it is not mapped.
    pub grpc_status: Option<String>,
    pub attributes: Vec<(Attribute, String)>,
}

impl FieldMapping {
    /// Parses an entry such as `jwt:sub=user.id`.
    ///
    /// # Errors
    /// If the text is not a valid entry. The error says what is wrong.
    pub fn parse(text: &str) -> Result<FieldMapping, String> {
        let (name, field) = text.split_once('=').ok_or("must be ATTRIBUTE=FIELD, like jwt:sub=user.id")?;
        if field.is_empty() {
            return Err("must have a field after `=`".to_owned());
        }
        let target = match (name, Attribute::parse(name)) {
            ("time", _) => Target::Time,
            ("status", _) => Target::Status,
            ("grpc_status", _) => Target::GrpcStatus,
            (_, Ok(Attribute::Route | Attribute::Upstream)) => {
                return Err(format!("{} cannot be mapped", Printable(name)));
            }
            (_, Ok(Attribute::PathSegment(_))) => {
                return Err(format!("{} cannot be mapped; map path", Printable(name)));
            }
            (_, Ok(Attribute::Words(claim))) => {
                let (name, claim) = (Printable(name), format!("jwt:{claim}"));
                return Err(format!("{name} cannot be mapped; map {}", Printable(&claim)));
            }
            (_, Ok(attribute)) => Target::Attribute(attribute),
            (_, Err(AttributeError::NameMissing)) => {
                return Err(format!("`{}` needs a name after the colon", Printable(name)));
            }
            (_, Err(AttributeError::WordsOfOther)) => {
                return Err(format!("`{}` takes a claim: words(jwt:scope)", Printable(name)));
            }
            (_, Err(AttributeError::BadSegment)) => {
                return Err(format!("`{}` is not a segment of a path; map path", Printable(name)));
            }
            (_, Err(AttributeError::BadPointer(invalid))) => {
                return Err(format!("`{}`: the JSON pointer {invalid}", Printable(name)));
            }
            (_, Err(AttributeError::BadHeaderName)) => {
                return Err(format!("`{}` is not a header name", Printable(name)));
            }
            (_, Err(AttributeError::Unknown)) => {
                return Err(format!(
                    "must begin with time, status, grpc_status or an attribute ({}), is `{}`",
                    SPELLINGS.join(", "),
                    Printable(name)
                ));
            }
        };
        Ok(FieldMapping { target, field: field.to_owned() })
    }
}

impl FieldMap {
    /// Makes a field map from these entries.
    ///
    /// # Errors
    /// If no entry maps the time, or two entries map the same attribute, the time or a status.
    pub fn new(members: &[FieldMapping]) -> Result<FieldMap, String> {
        let (mut time, mut status, mut grpc_status) = (None, None, None);
        let mut attributes: Vec<(Attribute, String)> = Vec::new();
        for member in members {
            match &member.target {
                Target::Time if time.replace(member.field.clone()).is_some() => {
                    return Err("time is mapped twice".to_owned());
                }
                Target::Status if status.replace(member.field.clone()).is_some() => {
                    return Err("status is mapped twice".to_owned());
                }
                Target::GrpcStatus if grpc_status.replace(member.field.clone()).is_some() => {
                    return Err("grpc_status is mapped twice".to_owned());
                }
                Target::Time | Target::Status | Target::GrpcStatus => {}
                Target::Attribute(attribute) if attributes.iter().any(|(known, _)| known == attribute) => {
                    return Err(format!("{attribute} is mapped twice"));
                }
                Target::Attribute(attribute) => attributes.push((attribute.clone(), member.field.clone())),
            }
        }
        let time = time.ok_or("must say which field is the time: time=FIELD")?;
        Ok(FieldMap { time, status, grpc_status, attributes })
    }

    pub fn index(&self, attribute: &Attribute) -> Option<usize> {
        self.attributes.iter().position(|(known, _)| known == attribute)
    }
}
