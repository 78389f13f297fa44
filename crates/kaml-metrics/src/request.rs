//! Reading the head of an HTTP request.
//!
//! Lives here:       from bytes to a method and a path, or the status that refuses them; no sockets.
//! Lives elsewhere:  sockets and time (`server`).
//! Implements:       RFC 9112 sections 2 to 5, for requests without content.

/// Bytes of a head at most: browsers send about one thousand.
pub(crate) const HEAD_BYTES_MAX: usize = 8 << 10;

/// A request that can be responded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Only the head of the response is requested.
    pub(crate) is_head: bool,
    /// Without the query.
    pub(crate) path: String,
}

/// Why a request is refused: a status code and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) why: &'static str,
}

const fn refuse(status: u16, why: &'static str) -> Refusal {
    Refusal { status, why }
}

const NO_REQUEST: Refusal = refuse(400, "this is no HTTP request");
const TOO_LONG: Refusal = refuse(431, "the head of a request has at most 8 KiB");

/// Reads what has come so far; nothing while the head is not whole.
pub(crate) fn read(bytes: &[u8]) -> Option<Result<Request, Refusal>> {
    let head = match end_of_head(bytes) {
        Some(end) if end <= HEAD_BYTES_MAX => &bytes[..end],
        None if bytes.len() < HEAD_BYTES_MAX => {
            // What cannot be a request any more need not be waited for.
            let is_text = bytes.iter().all(|byte| is_of_head(*byte));
            return if is_text { None } else { Some(Err(NO_REQUEST)) };
        }
        Some(_) | None => return Some(Err(TOO_LONG)),
    };
    Some(read_head(head))
}

/// Bytes of the head, with the empty line that ends it.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let lines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    lines
        .map(|(at, _)| at + 1)
        .find(|at| matches!(&bytes[*at..], [b'\n', ..] | [b'\r', b'\n', ..]))
        .map(|at| at + if bytes[at] == b'\n' { 1 } else { 2 })
}

/// Whether a byte can be in a head: printable characters, tabs, ends of lines, and what lies above ASCII.
fn is_of_head(byte: u8) -> bool {
    byte >= b' ' && byte != 0x7f || matches!(byte, b'\t' | b'\r' | b'\n')
}

fn read_head(head: &[u8]) -> Result<Request, Refusal> {
    if !head.iter().all(|byte| is_of_head(*byte)) {
        return Err(NO_REQUEST);
    }
    let head = str::from_utf8(head).map_err(|_| NO_REQUEST)?;
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(NO_REQUEST);
    };
    let has_host = check_fields(lines)?;
    match version {
        "HTTP/1.1" if !has_host => return Err(refuse(400, "a request of HTTP/1.1 has the field Host")),
        "HTTP/1.1" | "HTTP/1.0" => {}
        other if other.starts_with("HTTP/") => return Err(refuse(505, "use HTTP/1.1")),
        _ => return Err(NO_REQUEST),
    }
    let is_head = match method {
        "GET" => false,
        "HEAD" => true,
        _ if is_token(method) => return Err(refuse(405, "only GET and HEAD are allowed")),
        _ => return Err(NO_REQUEST),
    };
    if !target.starts_with('/') {
        return Err(refuse(400, "the target of a request is a path"));
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    Ok(Request { is_head, path: path.to_owned() })
}

/// Refuses fields that are none, and content. Returns whether Host is among them.
fn check_fields<'a>(lines: impl Iterator<Item = &'a str>) -> Result<bool, Refusal> {
    let mut has_host = false;
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or(NO_REQUEST)?;
        if !is_token(name) {
            return Err(NO_REQUEST);
        }
        has_host |= name.eq_ignore_ascii_case("host");
        let has_content = name.eq_ignore_ascii_case("transfer-encoding")
            || name.eq_ignore_ascii_case("content-length") && value.trim() != "0";
        if has_content {
            return Err(refuse(413, "a request has no content"));
        }
    }
    Ok(has_host)
}

/// A name as RFC 9110 has it.
fn is_token(text: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of_token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(text: &str) -> u16 {
        match read(text.as_bytes()) {
            None => 0,
            Some(Ok(_)) => 200,
            Some(Err(refusal)) => refusal.status,
        }
    }

    /// Goal:   requests of browsers and of Prometheus are read, what is not whole is waited for, and everything else is refused with the
    ///         status that RFC 9110 has for it.
    /// Method: one text for each case; 0 means that more is awaited.
    #[test]
    fn requests_and_refusals() {
        let get = "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        let expected = Request { is_head: false, path: "/metrics".into() };
        assert_eq!(read(get.as_bytes()), Some(Ok(expected.clone())));
        assert_eq!(read(get.replace("\r\n", "\n").as_bytes()), Some(Ok(expected)));
        (0..get.len()).for_each(|end| assert_eq!(status(&get[..end]), 0, "{end} bytes of it"));
        for (text, expected) in [
            ("HEAD / HTTP/1.0\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nhost:\r\n\r\n", 200),
            ("POST / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
            ("GET / FTP\r\n\r\n", 400),
            ("GET  / HTTP/1.0\r\n\r\n", 400),
            ("GET http://a/ HTTP/1.0\r\n\r\n", 400),
            ("GET / HTTP/1.0\r\nno field\r\n\r\n", 400),
            ("GET / HTTP/1.0\r\nbad name: 1\r\n\r\n", 400),
            ("GET / HTTP/1.0\r\nContent-Length: 5\r\n\r\nabcde", 413),
            ("GET / HTTP/1.0\r\nContent-Length: 0\r\n\r\n", 200),
            ("\r\n\r\n", 400),
            ("\u{16}\u{3}\u{1}", 400),
        ] {
            assert_eq!(status(text), expected, "{text:?}");
        }
        let field = |bytes: usize| format!("GET / HTTP/1.0\r\na: {}\r\n\r\n", "b".repeat(bytes));
        let most = HEAD_BYTES_MAX - field(0).len();
        assert_eq!([status(&field(most)), status(&field(most + 1))], [200, 431]);
        assert_eq!(status(&"a".repeat(HEAD_BYTES_MAX)), 431, "without an end");
    }

    proptest! {
        /// Goal:   no bytes make the reader panic or read differently when they come in pieces.
        /// Method: bytes at random, and requests with bytes changed; each beginning is read; a verdict never changes with more bytes, except
        ///         that a head which is too long is noticed at its end or at the limit.
        #[test]
        fn garbage_is_refused(
            random in prop::collection::vec(any::<u8>(), 0..300),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut request = b"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nAccept: text/plain\r\n\r\n".to_vec();
            for (at, byte) in changes {
                let at = at.index(request.len());
                request[at] = byte;
            }
            for bytes in [random, request] {
                let first = (0..=bytes.len()).find_map(|end| read(&bytes[..end]));
                if let Some(Ok(request)) = &first {
                    prop_assert!(request.path.starts_with('/'));
                }
                if let Some(Ok(_)) = first {
                    prop_assert_eq!(&first, &read(&bytes));
                }
            }
        }
    }
}
