//! Prints clap's help, or clap's error about invalid arguments.

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::output::{Page, print_errors};
use base::printable::Printable;

/// Prints help to standard output, or the error of invalid arguments to standard error.
pub(super) fn print(mut error: Error) {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // The text comes only from this program. Standard output may be closed.
        let _ = error.print();
        return;
    }
    // Without escapes, a line break in an argument would look like a new line of the error.
    let arguments: Vec<(ContextKind, ContextValue)> = error
        .context()
        .filter_map(|(kind, value)| match value {
            ContextValue::String(text) => Some((kind, ContextValue::String(printable(text)))),
            ContextValue::Strings(texts) => {
                Some((kind, ContextValue::Strings(texts.iter().map(|text| printable(text)).collect())))
            }
            _ => None,
        })
        .collect();
    for (kind, value) in arguments {
        error.insert(kind, value);
    }
    let mut page = Page::default();
    page.lines(error.render().to_string().lines());
    print_errors(&page);
}

fn printable(text: &str) -> String {
    Printable(text).to_string()
}
