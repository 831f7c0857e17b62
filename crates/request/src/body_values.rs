//! Reads the values that rules need from the body of a request. A value is in a JSON body, or in a field of a form.
//!
//! A body with more than one reading is refused. The upstream might read another value than the gateway has checked.

use std::borrow::Cow;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use super::attribute::Attribute;
use super::model_request::ModelBody;

/// What is known of a request's body. By default, nothing is known.
#[derive(Clone, Debug, Default)]
pub struct BodyValues {
    values: Vec<ReadValue>,
    /// Whether the request has no body, so that every value is missing.
    is_absent: bool,
    model: ModelBody,
}

/// An attribute with its value, or `None` if the body has no such value.
pub type ReadValue = (Attribute, Option<Vec<u8>>);

/// The kind of a body, by the media type of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// `application/json`, or another media type that ends in `+json`.
    Json,
    /// `application/x-www-form-urlencoded`.
    Form,
    /// Any other media type, or no media type. No attribute reads such a body.
    Other,
}

/// The error for a body that can be read in more than one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguousBody;

impl BodyValues {
    /// Makes the values of a request without a body.
    pub const fn absent() -> BodyValues {
        BodyValues { values: Vec::new(), is_absent: true, model: ModelBody::Other }
    }

    /// Returns whether the body is for a language model, and what it asks of the model.
    pub fn model(&self) -> &ModelBody {
        &self.model
    }

    /// Notes whether the body is for a language model, and what it asks of the model.
    pub fn note_model(&mut self, model: ModelBody) {
        self.model = model;
    }

    /// Returns the value of an attribute that is not folded. `None` if the body has no such value, or the value is not
    /// known.
    pub fn value(&self, attribute: &Attribute) -> Option<&[u8]> {
        self.find(attribute)?.as_deref()
    }

    /// Whether it is known which value this attribute has, or that it has none.
    pub fn knows(&self, attribute: &Attribute) -> bool {
        self.is_absent || self.find(attribute.source()).is_some()
    }

    /// Notes that the body has no value for these attributes.
    ///
    /// # Errors
    /// Never. The type of the result is that of [`BodyValues::read`], so that a caller can use both in the same way.
    pub fn note_missing(&mut self, attributes: &[Attribute]) -> Result<(), AmbiguousBody> {
        self.values.extend(attributes.iter().map(|attribute| (attribute.clone(), None)));
        Ok(())
    }

    /// Notes the values that were read from the body.
    pub fn note(&mut self, values: Vec<ReadValue>) {
        self.values.extend(values);
    }

    fn find(&self, attribute: &Attribute) -> Option<&Option<Vec<u8>>> {
        self.values.iter().find(|(known, _)| known == attribute).map(|(_, value)| value)
    }
}

impl BodyKind {
    /// Returns the kind of body that the media type of a request announces.
    ///
    /// # Errors
    /// If the request has several media types, or names another encoding than UTF-8. If no attribute reads bodies of
    /// these types, there is no error.
    pub fn of(head: &http::request::Parts) -> Result<BodyKind, AmbiguousBody> {
        let mut types = head.headers.get_all(CONTENT_TYPE).iter();
        let Some(written) = types.next() else { return Ok(BodyKind::Other) };
        let kinds = || head.headers.get_all(CONTENT_TYPE).iter().map(|kind| BodyKind::of_type(kind.as_bytes()));
        if kinds().all(|kind| kind == BodyKind::Other) {
            return Ok(BodyKind::Other);
        }
        if types.next().is_some() || !is_utf8(written.as_bytes()) {
            return Err(AmbiguousBody);
        }
        Ok(BodyKind::of_type(written.as_bytes()))
    }

    fn of_type(written: &[u8]) -> BodyKind {
        let essence = written.split(|byte| matches!(byte, b';' | b',')).next().unwrap_or_default();
        let essence = essence.trim_ascii().to_ascii_lowercase();
        match &*essence {
            b"application/x-www-form-urlencoded" => BodyKind::Form,
            b"application/json" => BodyKind::Json,
            other if other.ends_with(b"+json") => BodyKind::Json,
            _ => BodyKind::Other,
        }
    }

    /// Whether a body of this kind may have a value for one of the attributes.
    pub fn may_have_any(self, attributes: &[Attribute]) -> bool {
        attributes.iter().any(|attribute| match attribute.source() {
            Attribute::RequestJson(_) | Attribute::JsonAmount(_) | Attribute::Model => self == BodyKind::Json,
            Attribute::RequestForm(_) => self == BodyKind::Form,
            _ => false,
        })
    }
}

/// Whether the body has a content coding, such as `gzip`, so that it cannot be read.
pub fn is_coded(head: &http::request::Parts) -> bool {
    head.headers.get_all(CONTENT_ENCODING).iter().any(|coding| {
        let codings = coding.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let mut named = codings.filter(|coding| !coding.is_empty());
        named.any(|coding| !coding.eq_ignore_ascii_case(b"identity"))
    })
}

/// Whether the media type names no character encoding except UTF-8 or its subset ASCII.
fn is_utf8(media_type: &[u8]) -> bool {
    let parameters = media_type.split(|byte| *byte == b';').skip(1);
    let mut charsets = parameters.filter_map(|parameter| {
        let parameter = parameter.trim_ascii().to_ascii_lowercase();
        parameter.strip_prefix(b"charset=").map(<[u8]>::to_vec)
    });
    // Two media types in one field could be read in two ways.
    !media_type.contains(&b',')
        && charsets.all(|charset| matches!(&*charset, b"utf-8" | b"\"utf-8\"" | b"utf8" | b"\"utf8\"" | b"us-ascii"))
}

impl Attribute {
    /// Returns the value that the body of a request has for this attribute.
    pub(crate) fn in_body<'r>(&self, body: Option<&'r BodyValues>) -> Option<Cow<'r, [u8]>> {
        body?.value(self).map(Cow::Borrowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(names: &[&str]) -> Vec<Attribute> {
        names.iter().map(|name| Attribute::parse(name).unwrap()).collect()
    }

    fn read(kind: BodyKind, body: &[u8], names: &[&str]) -> Result<Vec<Option<String>>, AmbiguousBody> {
        let (mut values, attributes) = (BodyValues::default(), attributes(names));
        values.read(kind, body, &attributes)?;
        assert!(attributes.iter().all(|attribute| values.knows(attribute)));
        let text = |attribute| values.value(attribute).map(|value| String::from_utf8(value.to_vec()).unwrap());
        Ok(attributes.iter().map(text).collect())
    }

    fn kind(fields: &[(&str, &str)]) -> Result<BodyKind, AmbiguousBody> {
        let mut request = http::Request::builder();
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        BodyKind::of(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn scalars_of_json_are_values() {
        let body = br#"{"a":{"b":["x",-3]},"t":true,"f":1.0,"e":1e3,"n":null,"o":{},"s":""}"#;
        let names = ["/a/b/0", "/a/b/1", "/t", "/f", "/e", "/n", "/o", "/s", "/none", "/a/b/2", ""];
        let names: Vec<String> =
            names.iter().filter(|name| !name.is_empty()).map(|name| format!("request_json:{name}")).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let found = read(BodyKind::Json, body, &names).unwrap();
        let found: Vec<&str> = found.iter().map(|value| value.as_deref().unwrap_or("-")).collect();
        assert_eq!(found, ["x", "-3", "true", "-", "-", "-", "-", "-", "-", "-"]);
    }

    #[test]
    fn an_amount_is_a_decimal_without_an_exponent() {
        let amount = |body: &str| {
            let attribute = Attribute::JsonAmount(llm::json::Pointer::parse("/n").unwrap());
            let mut values = BodyValues::default();
            values.read(BodyKind::Json, body.as_bytes(), std::slice::from_ref(&attribute)).unwrap();
            values.value(&attribute).map(|value| String::from_utf8(value.to_vec()).unwrap())
        };
        for (body, value) in [
            ("{\"n\":7}", "7.000"),
            ("{\"n\":1.5}", "1.500"),
            ("{\"n\":1.0001}", "1.001"),
            ("{\"n\":2.5e3}", "2500.000"),
            ("{\"n\":\"1.5\"}", "1.500"),
            ("{\"n\":\" +1e5\"}", "100000.000"),
            ("{\"n\":\"many\"}", "many"),
            ("{\"n\":-7}", "-7"),
            ("{\"n\":true}", "true"),
        ] {
            assert_eq!(amount(body).as_deref(), Some(value), "{body}");
        }
        for body in ["{\"n\":null}", "{\"n\":[1]}", "{\"n\":\"\"}", "{}"] {
            assert_eq!(amount(body), None, "{body}");
        }
    }

    #[test]
    fn a_name_in_another_case_is_refused() {
        let names = ["llm:model", "request_json:/a/b", "request_json:/A/b"];
        for body in [r#"{"Model":"m"}"#, r#"{"model":"m","MODEL":"n"}"#, r#"{"a":{"B":1}}"#] {
            assert_eq!(read(BodyKind::Json, body.as_bytes(), &names), Err(AmbiguousBody), "{body}");
        }
        let found = read(BodyKind::Json, br#"{"a":{"b":1},"A":{"b":2},"c":{"Model":3}}"#, &names).unwrap();
        assert_eq!(found, [None, Some("1".to_owned()), Some("2".to_owned())]);
    }

    #[test]
    fn a_value_is_missing_in_a_body_of_another_kind() {
        let names = ["request_json:/a", "request_form:a", "llm:model", "path"];
        assert_eq!(read(BodyKind::Json, br#"{"a":1}"#, &names), Ok(vec![Some("1".to_owned()), None, None, None]));
        assert_eq!(read(BodyKind::Form, b"a=2", &names), Ok(vec![None, Some("2".to_owned()), None, None]));
        assert_eq!(read(BodyKind::Other, b"{", &names), Ok(vec![None; 4]));
        assert_eq!(read(BodyKind::Json, b"", &names), Ok(vec![None; 4]));
        // A body is checked only if a value is read from it.
        assert_eq!(read(BodyKind::Json, b"{", &["request_form:a", "path"]), Ok(vec![None; 2]));
        assert_eq!(read(BodyKind::Json, b"{", &names), Err(AmbiguousBody));
    }

    #[test]
    fn a_media_type_names_the_kind_of_a_body() {
        let of = |written: &str| kind(&[("content-type", written)]);
        for json in ["application/json", "APPLICATION/Json;charset=utf-8", "application/a.b+json ; x=y", "text/x+json"]
        {
            assert_eq!(of(json), Ok(BodyKind::Json), "{json}");
        }
        assert_eq!(of("application/x-www-form-urlencoded; charset=UTF-8"), Ok(BodyKind::Form));
        for other in ["application/jsonx", "text/plain, text/html", "text/json", "json", "", "multipart/form-data"] {
            assert_eq!(of(other), Ok(BodyKind::Other), "{other}");
        }
        for ambiguous in
            ["application/json, text/plain", "application/json;charset=utf-16", "application/json; Charset=\"x\""]
        {
            assert_eq!(of(ambiguous), Err(AmbiguousBody), "{ambiguous}");
        }
        let twice = |one, other| kind(&[("content-type", one), ("content-type", other)]);
        assert_eq!(twice("text/plain", "application/json"), Err(AmbiguousBody));
        assert_eq!(twice("text/plain", "text/plain"), Ok(BodyKind::Other));
        assert_eq!(kind(&[]), Ok(BodyKind::Other));
    }

    #[test]
    fn a_field_of_a_form_stands_once() {
        let one =
            |body: &str| read(BodyKind::Form, body.as_bytes(), &["request_form:a b"]).map(|mut found| found.remove(0));
        for (body, value) in
            [("a+b=1%202", "1 2"), ("x=a+b&a%20b=3&", "3"), ("a+b=%zz", "%zz"), ("a+b=x%3By=z", "x;y=z")]
        {
            assert_eq!(one(body), Ok(Some(value.to_owned())), "{body}");
        }
        for body in ["x=1", "a+b", "a+b=", "A+b=1", "&&"] {
            assert_eq!(one(body), Ok(None), "{body}");
        }
        for body in ["a+b=1&a+b=1", "a+b=1;a+b=2", "x=1;a+b=2", "a+b=x;y=z", "a+b=%ff", "a+b&a%20b=1"] {
            assert_eq!(one(body), Err(AmbiguousBody), "{body}");
        }
    }
}
