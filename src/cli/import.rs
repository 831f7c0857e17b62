//! `tollgate import`: writes a gateway.yaml from the files of another program.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::output::{self, Colour, ColourMode, Page};
use config::import::{Import, ImportedFile, Loss, import, import_kong, import_nginx};

const EXAMPLE: &str = "\
Example: carry the limits of another program over, and see what could not be.

  tollgate import ratelimit config/*.yaml > gateway.yaml
  tollgate import nginx /etc/nginx/nginx.conf /etc/nginx/conf.d/*.conf -o gateway.yaml
  tollgate import kong kong.yaml -o gateway.yaml
  tollgate check gateway.yaml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(subcommand)]
    from: From,
    /// The file to write, instead of standard output; after an error it is as it was before
    #[arg(short, long, value_name = "FILE", global = true)]
    output: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// Read the files of envoyproxy/ratelimit: descriptors with fixed windows
    #[command(after_help = EXAMPLE)]
    Ratelimit {
        /// The files, `-` for standard input; several may have one domain
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Read the files of nginx: limit_req and limit_conn
    #[command(after_help = EXAMPLE)]
    Nginx {
        /// The files, `-` for standard input; those that others include must be named too
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Read a declarative file of Kong: rate-limiting and rate-limiting-advanced
    #[command(after_help = EXAMPLE)]
    Kong {
        /// The file, `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// The names of standard output.
const STANDARD_OUTPUT: [&str; 3] = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// The most links that lead from one to the next.
const MOST_LINKS: usize = 40;

fn read_file(file: &Path) -> std::io::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return std::fs::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
}

/// Writes the imported configuration, and prints on standard error the settings that could not be imported.
///
/// # Errors
/// When a file cannot be read or written, or has problems.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let paths = match &arguments.from {
        From::Ratelimit { files } | From::Nginx { files } => files.as_slice(),
        From::Kong { file } => std::slice::from_ref(file),
    };
    let mut read = Vec::with_capacity(paths.len());
    for path in paths {
        let name = path.display().to_string();
        let bytes = read_file(path).map_err(|error| format!("{name}: must be a readable file: {error}"))?;
        read.push((name, bytes));
    }
    let files: Vec<ImportedFile<'_>> = read.iter().map(|(name, bytes)| ImportedFile { name, bytes }).collect();
    let Import { text, losses } = match (&arguments.from, files.as_slice()) {
        (From::Ratelimit { .. }, files) => import(files)?,
        (From::Kong { .. }, [file, ..]) => import_kong(file)?,
        (_, files) => import_nginx(files)?,
    };
    match arguments.output.as_ref().filter(|path| !STANDARD_OUTPUT.iter().any(|name| path.as_path() == Path::new(name)))
    {
        Some(path) => write(path, &text).map_err(|error| format!("{}: must be writable: {error}", path.display()))?,
        None => {
            let mut page = Page::default();
            page.lines(text.lines());
            output::print(&page)?;
        }
    }
    if !losses.is_empty() {
        let mut lines: Vec<String> = losses.iter().map(Loss::line).collect();
        lines.push(match lines.len() {
            1 => "1 remark".to_owned(),
            count => format!("{count} remarks"),
        });
        let mut errors = Page::default();
        errors.report(lines, Colour::Yellow, ColourMode::of_errors());
        output::print_errors(&errors);
    }
    Ok(())
}

/// Writes to a path. A file is replaced at once, so that it is never a part of a file. What is no file, such as a device or
/// a pipe, is opened and written.
///
/// # Errors
/// When the path cannot be written. A file is as it was before then.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let old = match std::fs::metadata(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // A file below these may be open elsewhere, under this name alone.
    let is_descriptor = path.starts_with("/dev/fd") || path.starts_with("/dev/stderr") || path.starts_with("/proc");
    match old {
        Some(old) if is_descriptor || !old.is_file() => {
            OpenOptions::new().append(old.is_file()).write(true).open(path)?.write_all(text.as_bytes())
        }
        Some(old) => {
            let path = std::fs::canonicalize(path)?;
            match replace(&path, text, Some(&old)) {
                // The owner, the folder, or that the file is a mount point can forbid it.
                Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ResourceBusy) => {
                    overwrite(&path, text)
                }
                replaced => replaced,
            }
        }
        None => replace(&led_to(path)?, text, None),
    }
}

/// Returns the path to which a link leads, where nothing is yet. A link stays a link.
///
/// # Errors
/// When links lead in a circle.
fn led_to(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = std::fs::read_link(&path) else { return Ok(path) };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(Error::other("links lead in a circle"))
}

/// Writes a new file, and puts it in the place of the one at this path. It has the owner and the mode of the old one.
///
/// # Errors
/// When that is not possible. The old file is as it was before then.
fn replace(path: &Path, text: &str, old: Option<&Metadata>) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(ErrorKind::IsADirectory)?.to_string_lossy().into_owned();
    let new = folder.join(format!(".{name}.{}", std::process::id()));
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    let mut fill = || {
        if let Some(old) = old {
            let made = file.metadata()?;
            if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
                fchown(&file, Some(old.uid()), Some(old.gid()))?;
            }
            file.set_permissions(old.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    let filled = fill();
    if filled.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    filled
}

/// Writes a file in its place, where it cannot be replaced.
///
/// # Errors
/// When the file cannot be opened. When it cannot be written, which may leave a part of it.
fn overwrite(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(u64::try_from(text.len()).map_err(Error::other)?)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_replaced_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.yaml");
        for old in ["a longer text than the new one", "short"] {
            std::fs::write(&path, old).unwrap();
            let before = std::fs::metadata(&path).unwrap().ino();
            overwrite(&path, "new text").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "new text");
            assert_eq!(std::fs::metadata(&path).unwrap().ino(), before);
        }
    }
}
