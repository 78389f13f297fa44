//! The state of a device from its metrics endpoint.
//!
//! Lives here:       one GET request.
//! Lives elsewhere:  the endpoint (`kaml-metrics`).
//! May be called by: `top`.

use crate::failure::Failure;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Time for connecting, and for each piece of the response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for all of it.
const RESPONSE_MAX: Duration = Duration::from_secs(20);
/// The response of the largest device has some hundred KiB.
const BYTES_MAX: usize = 16 << 20;

/// Where `kaml serve --metrics` listens.
pub struct Endpoint {
    address: String,
}

impl Endpoint {
    /// The endpoint that a URL names; nothing if it is no URL of HTTP. Its path does not matter.
    pub fn of_url(url: &str) -> Result<Option<Endpoint>, Failure> {
        if url.starts_with("https://") {
            return Err(Failure::Usage(format!("{url}: metrics are served without TLS: use http://")));
        }
        let Some(rest) = url.strip_prefix("http://") else { return Ok(None) };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let after_host = authority.rfind(']').map_or(authority, |end| &authority[end..]);
        if authority.is_empty() || authority.contains(|c: char| c == '@' || c.is_whitespace() || c.is_control()) {
            return Err(Failure::Usage(format!("{url}: a URL of an endpoint looks like http://127.0.0.1:9464")));
        }
        let port = if after_host.contains(':') { "" } else { ":80" };
        Ok(Some(Endpoint::at(&format!("{authority}{port}"))))
    }

    /// The endpoint at an address and port.
    pub fn at(address: &str) -> Endpoint {
        Endpoint { address: address.to_owned() }
    }

    /// The state that it shows.
    pub fn state(&self) -> Result<Value, Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::Failed(format!("http://{}: {why}", self.address));
        let response = self.get().map_err(|error| failed(&error))?;
        let ours = "what listens there is not `kaml serve --metrics`";
        let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(|| failed(&ours))?;
        let (head, body) = (String::from_utf8_lossy(&response[..end]), &response[end + 4..]);
        if head.lines().next().and_then(|line| line.split(' ').nth(1)) != Some("200") {
            return Err(failed(&ours));
        }
        let state: Value = serde_json::from_slice(body).map_err(|_| failed(&ours))?;
        if state.pointer("/stats/put_count").is_none() {
            return Err(failed(&ours));
        }
        Ok(state)
    }

    fn get(&self) -> std::io::Result<Vec<u8>> {
        let mut socket = Err(std::io::Error::other("the name has no address"));
        for address in self.address.to_socket_addrs()? {
            socket = TcpStream::connect_timeout(&address, PATIENCE);
            if socket.is_ok() {
                break;
            }
        }
        let mut socket = socket?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let request = format!("GET /state HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        socket.write_all(request.as_bytes())?;
        let (begin, mut response, mut piece) = (Instant::now(), Vec::new(), vec![0; 64 << 10]);
        loop {
            match socket.read(&mut piece) {
                Ok(0) => return Ok(response),
                Ok(count) => response.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Err(std::io::Error::other("no response in 5 seconds"));
                }
                Err(error) => return Err(error),
            }
            if response.len() > BYTES_MAX || begin.elapsed() > RESPONSE_MAX {
                return Err(std::io::Error::other("the response is too long, or comes too slowly"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   URLs of HTTP name an address and a port, other names are left to others, and what makes no sense is refused.
    #[test]
    fn urls_of_endpoints() {
        let address = |url: &str| Endpoint::of_url(url).ok().map(|endpoint| endpoint.map(|endpoint| endpoint.address));
        for (url, expected) in [
            ("http://127.0.0.1:9464", Some(Some("127.0.0.1:9464"))),
            ("http://[::1]:9464/metrics", Some(Some("[::1]:9464"))),
            ("http://[::1]/", Some(Some("[::1]:80"))),
            ("http://host", Some(Some("host:80"))),
            ("data.kaml", Some(None)),
            ("nvme+tcp://a:1/b", Some(None)),
            ("https://a", None),
            ("http:///state", None),
            ("http://user@host", None),
        ] {
            assert_eq!(address(url), expected.map(|found| found.map(str::to_owned)), "{url}");
        }
    }
}
