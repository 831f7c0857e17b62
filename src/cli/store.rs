//! `tollgate store init`: creates the tables of a PostgreSQL store, or prints the statements that create them.

use std::path::{Path, PathBuf};

use super::config_file::ConfigFile;
use super::failure::{Failure, with_hint};
use super::output::{self, Colour, ColourMode, Page};
use base::secret::{Secret, SecretSource};
use config::Config;
use stores::StoreError;
use stores::initialization::{GatewayLoginFault, Initialization, Login};

const EXAMPLE: &str = "\
Example: read the statements, and run them as a user who may create tables and roles.

  tollgate store init --print -c gateway.yaml
  tollgate store init --print -c gateway.yaml | psql -U postgres limits
  tollgate store init -c gateway.yaml --user postgres --password-file admin.txt

It can be repeated: what is there stays, and so does what was spent.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, clap::Subcommand)]
enum Act {
    /// Create the tables and the role of a PostgreSQL store, or bring them up to date
    Init(Init),
}

#[derive(Debug, clap::Args)]
struct Init {
    #[command(flatten)]
    file: ConfigFile,
    /// Print the statements; connect to nothing
    #[arg(long)]
    print: bool,
    /// Log in as this user, who may create tables and roles, instead of the gateway's user
    #[arg(long, value_name = "NAME", conflicts_with = "print")]
    user: Option<String>,
    /// The file with that user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

/// Prints the statements that prepare the database of a PostgreSQL store, or runs these statements.
///
/// # Errors
///
/// When the file has problems or names another kind of store, or the database refuses.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Act::Init(Init { file, print, user, password_file }) = &arguments.act;
    let config = Config::load(&file.config)?;
    let path = file.config.display();
    // Home has buckets of its own, maybe in another database.
    let home = config.home.as_ref().map(|home| &home.store);
    let initializations: Vec<Initialization<'_>> =
        std::iter::once(&config.store).chain(home).filter_map(Initialization::of).collect();
    if initializations.is_empty() {
        return Err(
            format!("{path}: store: must be `postgres`, is `{}`, which needs no tables", config.store.name()).into()
        );
    }
    if *print {
        let statements: Vec<String> = initializations.iter().map(|one| one.statements().to_string()).collect();
        return output::print_own(statements.join("\n").as_bytes());
    }
    let login = match user {
        None => Login::OfGateway,
        Some(user) => {
            Login::As { user: user.clone(), password: password_file.as_deref().map(read_password).transpose()? }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    initializations.iter().try_for_each(|initialization| initialize(&runtime, initialization, &login))
}

/// Prepares one database.
fn initialize(
    runtime: &tokio::runtime::Runtime,
    initialization: &Initialization<'_>,
    login: &Login,
) -> Result<(), Failure> {
    match runtime.block_on(initialization.run(login, &output::server_notices(initialization))) {
        Ok(()) => {
            if let Login::As { .. } = login {
                runtime.block_on(warn_of_gateway_login(initialization));
            }
            output::print_line(format_args!("{initialization}: ready"))
        }
        Err(fault) => {
            let what = format!("{initialization}: {}: {}", fault.error.name(), fault.detail);
            match fault.error {
                StoreError::Forbidden => Err(with_hint(
                    what,
                    "name a user who may create tables and roles with --user, or give them the output of --print",
                )),
                _ if fault.detail.contains("password missing") => {
                    let hint = match login {
                        Login::As { user, .. } => {
                            format!(
                                "--password-file FILE names a file with the password of {user}; PGPASSWORD is not read"
                            )
                        }
                        Login::OfGateway => "name the password in `store.postgres.password_file`".to_owned(),
                    };
                    Err(with_hint(what, hint))
                }
                _ => Err(what.into()),
            }
        }
    }
}

/// Prints what the gateway's user lacks. The tables are ready all the same, and a password may be set later.
async fn warn_of_gateway_login(initialization: &Initialization<'_>) {
    let Err(GatewayLoginFault { user, fault, help }) =
        initialization.check_gateway_login(&output::server_notices(initialization)).await
    else {
        return;
    };
    let what = format!("{initialization}: gateways cannot log in as {user}: {}: {}", fault.error.name(), fault.detail);
    let hint = help.map(|help| format!("  hint: {help}"));
    let mut page = Page::default();
    page.report([what].into_iter().chain(hint).collect(), Colour::Yellow, ColourMode::of_errors());
    output::print_errors(&page);
}

fn read_password(path: &Path) -> Result<SecretSource, Failure> {
    let content = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let password = Secret::from_file(&content).ok_or_else(|| format!("{}: is not UTF-8 text", path.display()))?;
    Ok(SecretSource::Inline(password))
}
