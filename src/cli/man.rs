//! `tollgate man`: prints the manual page, generated from the help texts.

use std::io;

use clap::Command;
use clap_mangen::Man;

use super::failure::Failure;
use super::output::print_own;

const EXAMPLE: &str = "\
Example: read it, or install it.

  tollgate man | man -l -
  tollgate man > /usr/local/share/man/man1/tollgate.1";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {}

/// Prints the manual page.
///
/// # Errors
/// When the page cannot be written.
pub(super) fn run(_: &Arguments, tollgate: Command) -> Result<(), Failure> {
    print_own(page(tollgate)?.as_bytes())
}

fn page(mut tollgate: Command) -> Result<String, Failure> {
    tollgate.build();
    let version = tollgate.get_version().unwrap_or_default();
    let mut page = format!(".TH TOLLGATE 1 \"\" \"tollgate {version}\" \"Tollgate\"\n{APOSTROPHE}");
    let whole = Man::new(tollgate.clone());
    page += &section("NAME", &rendered(&whole, Man::render_name_section)?);
    page += &section("SYNOPSIS", &rendered(&whole, Man::render_synopsis_section)?);
    page += &section("OPTIONS", &rendered(&whole, Man::render_options_section)?);
    page += &section("EXAMPLE", &example(&whole)?);
    page += ".SH COMMANDS\n";
    explain_all(&tollgate, &mut page)?;
    Ok(page)
}

/// Appends the subcommands of a command, recursively.
fn explain_all(above: &Command, page: &mut String) -> Result<(), Failure> {
    for command in above.get_subcommands().filter(|command| command.get_name() != "help") {
        let of_command = Man::new(command.clone());
        let name = command.get_bin_name().unwrap_or_default().trim_start_matches("tollgate ");
        *page += &format!(".SS {name}\n");
        *page += &rendered(&of_command, Man::render_synopsis_section)?;
        *page += ".PP\n";
        *page += &rendered(&of_command, Man::render_description_section)?;
        *page += &rendered(&of_command, Man::render_options_section)?;
        if command.get_after_help().is_some() {
            *page += ".PP\n";
            *page += &example(&of_command)?;
        }
        explain_all(command, page)?;
    }
    Ok(())
}

fn section(heading: &str, text: &str) -> String {
    format!(".SH {heading}\n{text}")
}

/// Returns the text that `-h` prints after the usage, line by line.
fn example(page: &Man) -> Result<String, Failure> {
    Ok(format!(".nf\n{}.fi\n", rendered(page, Man::render_extra_section)?))
}

/// The groff definition of an apostrophe, with which clap_mangen begins every part.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Returns a part of a page, without the lines that would begin a new page.
fn rendered(page: &Man, part: fn(&Man, &mut dyn io::Write) -> io::Result<()>) -> Result<String, Failure> {
    let mut text = Vec::new();
    part(page, &mut text)?;
    let text = String::from_utf8(text)?;
    let lines = text.strip_prefix(APOSTROPHE).unwrap_or(&text).lines().filter(|line| !line.starts_with(".SH "));
    Ok(lines.map(|line| format!("{}\n", line.trim_end())).collect())
}
