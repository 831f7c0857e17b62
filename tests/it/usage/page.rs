//! The page of the recipe, in a browser: it shows what is left, and when that resets.

use std::io::Write;

use super::{PATH, USAGE};
use crate::support::browser::rendered;
use crate::support::{Gateway, Upstream};

const PAGE: &str = include_str!("../../../deploy/usage.html");

/// An upstream that serves the page.
fn site() -> Upstream {
    Upstream::answering(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n";
        let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{PAGE}", PAGE.len());
    })
}

/// Returns the text of the page at this URL of a gateway.
fn shown(gateway: &Gateway, target: &str) -> Option<String> {
    let page = rendered("the page of the recipe", &format!("http://{}{target}", gateway.http))?;
    let pieces = page.split('<').filter_map(|piece| piece.split_once('>')).map(|(_, text)| text.trim());
    Some(pieces.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" "))
}

const RULES: &str = "
policies:
  - {name: pages, rules: [{name: pages, match: {path: /usage.html}, action: allow}]}
  - name: api
    rules:
      - name: items
        match: {path: /v1/*}
        limit_keys: [ip:address]
        algorithm: fixed_window
        algorithm_config: {limit: 5, window: 366d}
";

#[test]
fn a_customer_sees_what_is_left_and_when_it_resets() {
    let gateway = Gateway::start(&site(), &format!("{USAGE}{RULES}"));
    for _ in 0..2 {
        assert_eq!(gateway.client().get("/v1/items", &[]).status, 200);
    }
    let Some(page) = shown(&gateway, "/usage.html?path=/v1/items") else { return };
    assert!(page.contains("items 2 of 5 requests 0 3 ") && page.contains("As of "), "{page}");
    let year = gateway.client().get(&format!("{PATH}?path=/v1/items"), &[]).json()["limits"][0]["resets_at"].clone();
    let year = &year.as_str().unwrap()[..4];
    assert!(page.contains(year), "no {year} in {page}");
    assert!(shown(&gateway, "/usage.html").unwrap().contains("No limit applies."));
}

#[test]
fn the_page_says_that_nothing_can_be_shown() {
    let gateway = Gateway::start(&site(), &format!("{}{RULES}", USAGE.replace("100000/s", "1/day")));
    assert_eq!(gateway.client().get(PATH, &[]).status, 200);
    let Some(page) = shown(&gateway, "/usage.html") else { return };
    assert!(page.contains("Not available (429), try again in "), "{page}");
}
