//! Makes the changes of a route in the fields of a response.

use pingora::http::ResponseHeader;

use rules::route::header_changes::ResolvedChanges;

/// # Errors
/// If the response has too many fields.
pub fn apply(changes: &ResolvedChanges, response: &mut ResponseHeader) -> pingora::Result<()> {
    for (name, value) in &changes.0 {
        match value {
            Some(value) => response.insert_header(name.clone(), value.clone())?,
            None => drop(response.remove_header(name)),
        }
    }
    Ok(())
}
