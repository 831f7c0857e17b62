//! Reads `prices`: the file with the prices of models, and what happens to requests for a model without a price.

use std::sync::Arc;

use crate::keys::upstreams::PERCENT;
use crate::language::environment::Environment;
use crate::language::key::{Key, Mapping, PATH, Type, unconstrained};
use crate::language::reader::Field;
use crate::language::value_types::SCALAR;
use base::position::Position;
use llm::prices::{Prices, WrongLine};

/// The value of `default` that refuses requests for a model without a price.
const REFUSE: &str = "refuse";

pub(crate) static PRICES: Mapping = Mapping {
    heading: Some("key in `prices`"),
    definition: None,
    keys: &[
        Key::required(
            "file",
            PATH,
            "A file of lines `model,input,output,cached,cache_write,above`, in USD for a million tokens.",
        ),
        Key::default(
            "default",
            Type::Own { text: "`refuse`, or a `model` of the file", shape: SCALAR },
            REFUSE,
            "Requests for a model without a price are refused (400), or cost what this line says.",
        ),
        Key::default(
            "max_shrink",
            PERCENT.declared(),
            "50%",
            "How much of the file may be lost at once; if more is lost, nothing changes.",
        ),
    ],
    constraints: unconstrained,
};

/// Reads `prices`. `None` after reporting a problem.
pub(crate) fn prices(field: Field<'_>, environment: Environment<'_>) -> Option<Arc<Prices>> {
    let section = field.section(&PRICES)?;
    let file = section.need("file").and_then(|name| Some((table(&name, environment)?, name)));
    let max_shrink = section.value("max_shrink", |field| PERCENT.read(field));
    let with_default = section.value("default", |field| {
        let line = field.written()?;
        let Some((table, _)) = &file else { return Some(None) };
        if line == REFUSE {
            return Some(Some(table.clone()));
        }
        let with_default = table.clone().with_default(line);
        if with_default.is_none() {
            field.must(format_args!("be {REFUSE}, or a `model` of the file of prices, as it is written there"));
        }
        with_default.map(Some)
    });
    section.close();
    let ((table, name), max_shrink, with_default) = (file?, max_shrink?, with_default?);
    name.note_list(name.written()?, table.count(), max_shrink);
    with_default.map(Arc::new)
}

fn table(name: &Field<'_>, environment: Environment<'_>) -> Option<Prices> {
    let (file, content) = (name.written()?, environment.file(name)?);
    match Prices::parse(&content) {
        Ok(table) => Some(table),
        Err(wrong) => {
            for WrongLine { line, what } in wrong {
                name.elsewhere(file, Some(Position { line, column: 1 }), what);
            }
            None
        }
    }
}
