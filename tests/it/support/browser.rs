//! A headless browser, which runs the scripts of a page.

use std::process::Command;

use super::not_checked;

/// Returns the page at this URL after five seconds of the browser's clock, which stops while the browser waits for an answer.
/// `None` without a browser. `what` names the page in the report.
pub(crate) fn rendered(what: &str, url: &str) -> Option<String> {
    let folder = tempfile::TempDir::new().unwrap();
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", folder.path().display())).arg("--virtual-time-budget=5000");
    match command.arg(url).output() {
        Ok(output) => {
            let page = String::from_utf8_lossy(&output.stdout);
            // The script names much that is not shown.
            let (_, body) = page.split_once("<body").unwrap_or_else(|| panic!("no page: {output:?}"));
            Some(body.split("<script>").next().unwrap().to_owned())
        }
        Err(error) => {
            not_checked(&format!("{what} in a browser: chromium: {error}; run scripts/need chromium"));
            None
        }
    }
}
