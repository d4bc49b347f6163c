//! Objects as people read them.

use ssntp_opflex::model::ManagedObject;

use crate::failure::Failure;
use crate::output::{Output, printable};

/// The class and the URI with a note behind it, then a line for each property.
pub(super) fn print_with_note(
    output: &mut Output,
    object: &ManagedObject,
    note: &str,
) -> Result<(), Failure> {
    let line = format!("{} {} {note}", object.subject, object.uri);
    output.line(printable(line.trim_end()))?;
    print_properties(output, object)
}

pub(super) fn print_properties(output: &mut Output, object: &ManagedObject) -> Result<(), Failure> {
    object
        .properties
        .iter()
        .try_for_each(|property| output.line(printable(&format!("  {} = {}", property.name, property.data))))
}
