//! Reads the values of attributes from a body in steps, so that a long body does not keep a thread from other requests.

use std::sync::Arc;

use llm::json::{Interest, JsonScanner, Lookup, Number, Pointer, PointerSet, Value};

use super::attribute::Attribute;
use super::body_values::{AmbiguousBody, BodyKind, BodyValues, ReadValue};
use super::percent_encoding;
use super::query;

/// The attributes that are places in JSON bodies, with what a scanner needs to find all of them. Made once for the rules.
#[derive(Clone, Debug)]
pub struct JsonPlaces {
    attributes: Vec<Attribute>,
    /// The places in the order of `attributes`, and then the whole body.
    pointers: Arc<PointerSet>,
}

/// A body whose values are being read. [`step`](Self::step) reads some of it.
#[derive(Debug)]
pub struct BodyReading<'b> {
    /// What has not been read.
    rest: &'b [u8],
    json: Option<JsonReading>,
    form: Vec<FormField<'b>>,
    missing: Vec<Attribute>,
}

#[derive(Debug)]
struct JsonReading {
    scanner: JsonScanner<Arc<PointerSet>>,
    /// The attributes that are needed, each with the index of its pointer.
    needed: Vec<(Attribute, usize)>,
    /// The index of the pointer to the whole body.
    root: usize,
}

/// What a form has for one attribute so far.
#[derive(Debug)]
struct FormField<'b> {
    attribute: Attribute,
    /// The first of its fields, which end at `&`.
    pair: Option<&'b [u8]>,
    /// The first of its fields for a framework in which they also end at `;`.
    part: Option<&'b [u8]>,
    is_repeated: bool,
}

impl Default for JsonPlaces {
    fn default() -> JsonPlaces {
        JsonPlaces::of(&[])
    }
}

impl JsonPlaces {
    /// Collects the places that these attributes, or what they change, name in JSON bodies.
    pub fn of(attributes: &[Attribute]) -> JsonPlaces {
        let (mut places, mut pointers): (Vec<Attribute>, Vec<Pointer>) = (Vec::new(), Vec::new());
        for attribute in attributes.iter().map(Attribute::source) {
            if let Some(pointer) = pointer_of(attribute)
                && !places.contains(attribute)
            {
                places.push(attribute.clone());
                pointers.push(pointer);
            }
        }
        pointers.extend(Pointer::parse(""));
        let pointers = PointerSet::new(pointers.into_iter().map(|pointer| (pointer, Interest::Value)));
        JsonPlaces { attributes: places, pointers: Arc::new(pointers) }
    }

    fn index_of(&self, attribute: &Attribute) -> Option<usize> {
        self.attributes.iter().position(|known| known == attribute)
    }
}

/// Returns the place of an attribute in a JSON body. `None` for another attribute.
fn pointer_of(attribute: &Attribute) -> Option<Pointer> {
    match attribute {
        Attribute::RequestJson(pointer) | Attribute::JsonAmount(pointer) => Some(pointer.clone()),
        Attribute::Model => Pointer::parse("/model").ok(),
        _ => None,
    }
}

impl<'b> BodyReading<'b> {
    /// Begins to read these attributes. `places` has those of them that are places in JSON.
    ///
    /// # Errors
    /// If `places` lacks one of the attributes.
    pub fn new(
        kind: BodyKind,
        body: &'b [u8],
        attributes: &[Attribute],
        places: &JsonPlaces,
    ) -> Result<BodyReading<'b>, AmbiguousBody> {
        let (mut needed, mut form, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for attribute in attributes {
            match attribute {
                Attribute::RequestJson(_) | Attribute::JsonAmount(_) | Attribute::Model
                    if kind == BodyKind::Json && !body.is_empty() =>
                {
                    needed.push((attribute.clone(), places.index_of(attribute).ok_or(AmbiguousBody)?));
                }
                Attribute::RequestForm(_) if kind == BodyKind::Form => {
                    form.push(FormField { attribute: attribute.clone(), pair: None, part: None, is_repeated: false });
                }
                other => missing.push(other.clone()),
            }
        }
        let json = (!needed.is_empty()).then(|| JsonReading {
            scanner: JsonScanner::new(Arc::clone(&places.pointers), u64::MAX),
            needed,
            root: places.attributes.len(),
        });
        Ok(BodyReading { rest: body, json, form, missing })
    }

    /// Reads about `most` bytes more. Returns whether something is left. A field of a form is read at once.
    pub fn step(&mut self, most: usize) -> bool {
        let is_needed = self.json.is_some() || !self.form.is_empty();
        if !is_needed || self.rest.is_empty() {
            return false;
        }
        let mut piece = self.rest.get(..most).unwrap_or(self.rest);
        if let Some(json) = &mut self.json {
            json.scanner.push(piece);
        } else {
            let after = self.rest.get(piece.len()..).unwrap_or_default();
            let end = after.iter().position(|byte| *byte == b'&').unwrap_or(after.len());
            piece = self.rest.get(..piece.len() + end).unwrap_or(self.rest);
            self.form.iter_mut().for_each(|field| field.read(piece));
        }
        self.rest = self.rest.get(piece.len()..).unwrap_or_default();
        !self.rest.is_empty()
    }

    /// Returns the value of each attribute, or `None` if the body has no value for it.
    ///
    /// # Errors
    /// If the body is not what its media type says, is a JSON array, or has a name twice or in another case that an
    /// attribute reads. Also if a text in JSON is longer than [`Value::MAX_BYTES`], if a field of a form is not UTF-8,
    /// and if the body has not been read to its end.
    pub fn finish(self) -> Result<Vec<ReadValue>, AmbiguousBody> {
        let BodyReading { rest, json, form, missing } = self;
        if !rest.is_empty() && (json.is_some() || !form.is_empty()) {
            return Err(AmbiguousBody);
        }
        let mut values: Vec<ReadValue> = missing.into_iter().map(|attribute| (attribute, None)).collect();
        if let Some(json) = json {
            json.finish(&mut values)?;
        }
        for field in form {
            let value = field.value()?;
            values.push((field.attribute, value));
        }
        Ok(values)
    }
}

impl JsonReading {
    /// Adds the value at each pointer. `None` for a value that is missing, empty, or not a text, integer or boolean.
    fn finish(mut self, values: &mut Vec<ReadValue>) -> Result<(), AmbiguousBody> {
        self.scanner.finish().map_err(|_| AmbiguousBody)?;
        // An array may be a batch of requests. A pointer would read only one of them.
        if self.scanner.value(self.root) == Lookup::Value(&Value::Array) {
            return Err(AmbiguousBody);
        }
        for (attribute, index) in self.needed {
            let value = match self.scanner.value(index) {
                _ if self.scanner.has_other_case(index) => return Err(AmbiguousBody),
                Lookup::Twice | Lookup::Value(Value::TooLong) => return Err(AmbiguousBody),
                Lookup::Value(value) if matches!(attribute, Attribute::JsonAmount(_)) => amount(value),
                Lookup::Value(value) => scalar(value),
                Lookup::Missing => None,
            };
            values.push((attribute, value));
        }
        Ok(())
    }
}

/// Returns the text of a text, an integer or a boolean. `None` for another value.
fn scalar(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Text(text) => Some(text.as_bytes().to_vec()).filter(|text| !text.is_empty()),
        Value::Bool(value) => Some(if *value { b"true".to_vec() } else { b"false".to_vec() }),
        Value::Number(number) => {
            let digits = number.as_str().strip_prefix('-').unwrap_or(number.as_str());
            let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
            is_integer.then(|| number.as_str().as_bytes().to_vec())
        }
        Value::Null | Value::TooLong | Value::Array | Value::Object => None,
    }
}

/// Returns an amount without an exponent, rounded up to thousandths. Some servers take a text for its number, so a
/// number in a text is one. Another text, a negative number and a boolean stay as they are. `None` for another value.
fn amount(value: &Value) -> Option<Vec<u8>> {
    let number = match value {
        Value::Number(number) => Some(number.clone()),
        Value::Text(text) => Number::in_text(text),
        _ => None,
    };
    let thousandths = number.as_ref().and_then(|number| number.ceil(3));
    let decimal = |thousandths: u64| format!("{}.{:03}", thousandths / 1000, thousandths % 1000).into_bytes();
    match (thousandths, value) {
        (Some(thousandths), _) => Some(decimal(thousandths)),
        (None, Value::Number(number)) => Some(number.as_str().as_bytes().to_vec()),
        (None, other) => scalar(other),
    }
}

impl<'b> FormField<'b> {
    /// Reads some fields of the form. `piece` ends where a field ends.
    fn read(&mut self, piece: &'b [u8]) {
        let Attribute::RequestForm(name) = &self.attribute else { return };
        // An escaped byte has three. A longer name is not decoded.
        let longest = name.len().saturating_mul(3);
        let is_it = |field: &[u8]| {
            let found = query::name_and_value(field).0;
            found.len() <= longest && *percent_encoding::decode_form(found) == *name.as_bytes()
        };
        if self.pair.is_none() {
            self.pair = piece.split(|byte| *byte == b'&').find(|pair| is_it(pair));
        }
        // Some frameworks separate fields at `;` as well.
        for part in piece.split(|byte| matches!(byte, b'&' | b';')).filter(|part| is_it(part)) {
            self.is_repeated |= self.part.is_some();
            self.part = self.part.or(Some(part));
        }
    }

    /// Returns the decoded value. `None` if the field is absent or empty.
    fn value(&self) -> Result<Option<Vec<u8>>, AmbiguousBody> {
        if self.pair != self.part || self.is_repeated {
            return Err(AmbiguousBody);
        }
        let Some(pair) = self.pair else { return Ok(None) };
        let value = percent_encoding::decode_form(query::name_and_value(pair).1);
        if std::str::from_utf8(&value).is_err() {
            return Err(AmbiguousBody);
        }
        Ok(Some(value.into_owned()).filter(|value| !value.is_empty()))
    }
}

impl BodyValues {
    /// Reads the values of these attributes from a body at once.
    ///
    /// # Errors
    /// Those of [`BodyReading::finish`].
    pub fn read(&mut self, kind: BodyKind, body: &[u8], attributes: &[Attribute]) -> Result<(), AmbiguousBody> {
        let mut reading = BodyReading::new(kind, body, attributes, &JsonPlaces::of(attributes))?;
        while reading.step(usize::MAX) {}
        self.note(reading.finish()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(names: &[&str]) -> Vec<Attribute> {
        names.iter().map(|name| Attribute::parse(name).unwrap()).collect()
    }

    /// Reads the attributes in steps of so many bytes. Returns the largest number of bytes of a step, too.
    fn in_steps(
        kind: BodyKind,
        body: &[u8],
        names: &[&str],
        most: usize,
    ) -> (Result<Vec<ReadValue>, AmbiguousBody>, usize) {
        let attributes = attributes(names);
        let mut reading = BodyReading::new(kind, body, &attributes, &JsonPlaces::of(&attributes)).unwrap();
        let mut longest = 0;
        loop {
            let before = reading.rest.len();
            let is_more = reading.step(most);
            longest = longest.max(before - reading.rest.len());
            if !is_more {
                return (reading.finish(), longest);
            }
        }
    }

    #[test]
    fn the_size_of_the_steps_does_not_matter() {
        let json = br#"{"a":{"b":"x"},"model":"m","n":[1,2,3],"last":7}"#;
        let bodies: [(BodyKind, &[u8], &[&str]); 7] = [
            (BodyKind::Json, json, &["request_json:/a/b", "llm:model", "request_json:/last", "path"]),
            (BodyKind::Json, br#"{"a":1,"a":2}"#, &["request_json:/a"]),
            (BodyKind::Json, br#"{"a":1"#, &["request_json:/a"]),
            (BodyKind::Form, b"x=1&user=ann&y=a;b&z", &["request_form:user", "request_form:z"]),
            (BodyKind::Form, b"user=ann&x=1;user=bob", &["request_form:user"]),
            (BodyKind::Form, b"user=ann&user=ann", &["request_form:user"]),
            (BodyKind::Form, b"&&us%65r=a%20b&", &["request_form:user"]),
        ];
        for (kind, body, names) in bodies {
            let (whole, _) = in_steps(kind, body, names, usize::MAX);
            for most in 1..body.len() {
                assert_eq!(in_steps(kind, body, names, most).0, whole, "{most} of {}", body.escape_ascii());
            }
        }
    }

    #[test]
    fn a_step_is_as_long_as_it_may_be_but_for_a_long_field() {
        let json = format!(r#"{{"a":"{}","b":1}}"#, "x".repeat(100_000));
        assert_eq!(in_steps(BodyKind::Json, json.as_bytes(), &["request_json:/b"], 1000).1, 1000);
        let form = "ab=cd&".repeat(20_000);
        let (_, longest) = in_steps(BodyKind::Form, form.as_bytes(), &["request_form:user"], 1000);
        assert!((1000..1010).contains(&longest), "{longest}");
        let (read, longest) = in_steps(BodyKind::Form, json.as_bytes(), &["request_form:user"], 1000);
        assert_eq!((read.map(|mut found| found.remove(0).1), longest), (Ok(None), json.len()));
    }

    #[test]
    fn an_attribute_without_a_place_is_not_read_as_missing() {
        let attributes = attributes(&["request_json:/a"]);
        let reading = BodyReading::new(BodyKind::Json, b"{}", &attributes, &JsonPlaces::default());
        assert_eq!(reading.err(), Some(AmbiguousBody));
    }
}
