//! Runs curl with a TLS listener. The file `ca.pem` of the gateway verifies the certificate.

use std::net::SocketAddr;
use std::process::Command;

use super::Gateway;

/// The result of curl: its exit code, which is 0 or the reason for its failure, and its output.
#[derive(Debug)]
pub(crate) struct CurlOutput {
    pub code: i32,
    /// The status of the last response; 0 without one.
    pub status: u16,
    /// The heads and the body.
    pub text: String,
}

/// Requests `https://HOST/` from the first listener, with these additional arguments.
pub(crate) fn curl(gateway: &Gateway, host: &str, arguments: &[&str]) -> CurlOutput {
    curl_at(gateway, gateway.http, host, arguments)
}

/// Requests `https://HOST/` from another listener.
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
