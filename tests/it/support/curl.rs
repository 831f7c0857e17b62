//! Runs curl with a TLS listener. The file `ca.pem` of the gateway verifies the certificate.

use std::net::SocketAddr;
use std::process::Command;

use super::Gateway;

/// What curl has printed, and its exit code: 0, or why it failed.
#[derive(Debug)]
pub(crate) struct CurlOutput {
    pub code: i32,
    /// The status of the last response; 0 without one.
    pub status: u16,
    /// Heads and body.
    pub text: String,
}

/// Requests `https://HOST/` at the first listener, with these arguments more.
pub(crate) fn curl(gateway: &Gateway, host: &str, arguments: &[&str]) -> CurlOutput {
    curl_at(gateway, gateway.http, host, arguments)
}

/// The same at another listener.
pub(crate) fn curl_at(gateway: &Gateway, address: SocketAddr, host: &str, arguments: &[&str]) -> CurlOutput {
    let resolve = format!("{host}:{}:{}", address.port(), address.ip());
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--include", "--max-time", "10", "--write-out", "\n%{http_code}"])
        .arg("--cacert")
        .arg(gateway.file("ca.pem"))
        .args(["--resolve", &resolve])
        .args(arguments)
        .arg(format!("https://{host}:{}/", address.port()))
        .current_dir(gateway.file(""))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let written = String::from_utf8_lossy(&output.stdout).lines().last().and_then(|code| code.parse().ok());
    CurlOutput { code: output.status.code().unwrap(), status: written.unwrap_or(0), text }
}
