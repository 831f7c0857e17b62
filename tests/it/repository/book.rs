//! Opens the documentation that scripts/book has built, in a browser without a server, and searches in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::docs::{self, PAGES};
use crate::support::not_checked;

/// Returns a copy of the book's pages. A test may add a page to it.
fn book() -> Option<(TempDir, PathBuf)> {
    let built = Path::new(env!("CARGO_BIN_EXE_tollgate")).ancestors().nth(2).unwrap().join("book/html");
    if !built.join("index.html").exists() {
        not_checked("the book is not built: run scripts/book");
        return None;
    }
    let folder = TempDir::new().unwrap();
    let copied = Command::new("cp").arg("-r").arg(&built).arg(folder.path()).status().unwrap();
    assert!(copied.success());
    let pages = folder.path().join("html");
    Some((folder, pages))
}

/// Types a query into the search field of the first page and sends it. Returns the page that the browser then shows; `None`
/// without a browser.
fn typed(pages: &Path, query: &str) -> Option<String> {
    let types = format!(
        "<script>addEventListener('load', () => {{ const field = document.querySelector('input[name=q]'); field.value = \
         '{query}'; field.form.requestSubmit(); }});</script>"
    );
    let first = std::fs::read_to_string(pages.join("index.html")).unwrap();
    std::fs::write(pages.join("typed.html"), first + &types).unwrap();
    let profile = TempDir::new().unwrap();
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", profile.path().display())).arg("--virtual-time-budget=10000");
    match command.arg(format!("file://{}", pages.join("typed.html").display())).output() {
        Ok(output) => Some(String::from_utf8(output.stdout).unwrap()),
        Err(error) => {
            not_checked(&format!("the search of the book: chromium: {error}; run scripts/need chromium"));
            None
        }
    }
}

#[test]
fn a_typed_query_finds_its_page() {
    let Some((_folder, pages)) = book() else { return };
    for (query, expected) in [
        ("TollgateStoreDown", "docs/alerts.html"),
        ("certbot", "docs/guide/6-tls.html"),
        ("on_store_failure", "docs/stores.html"),
        ("upgrade rollback", "docs/deploy.html"),
        ("429", "docs/troubleshooting.html"),
    ] {
        let Some(page) = typed(&pages, query) else { return };
        let results = page.split_once("id=\"search-results\"").unwrap_or_else(|| panic!("no results: {page}")).1;
        assert!(results.contains(&format!("<a href=\"{expected}")), "{query}: {results}");
        assert!(std::fs::read_to_string(pages.join(expected)).unwrap().contains("<h1>"));
    }
    let page = typed(&pages, "xyzzyplugh").unwrap();
    assert!(page.contains("did not match any documents"), "{page}");
}

#[test]
fn the_book_has_every_page_and_refers_to_nothing_elsewhere() {
    let Some((_folder, pages)) = book() else { return };
    for name in PAGES.iter().chain(&["CHANGELOG.md", "CONTRIBUTING.md"]) {
        let page = pages.join(name.replace(".md", ".html"));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        let title = docs::read(name).lines().next().unwrap().trim_start_matches("# ").replace('`', "");
        assert!(page.contains(&title), "{name}: {title}");
        let fetched = page.split(['<', '>']).filter(|tag| tag.starts_with("script") || tag.starts_with("link"));
        for tag in fetched {
            assert!(!tag.contains("://"), "{name} fetches {tag}");
        }
    }
}
