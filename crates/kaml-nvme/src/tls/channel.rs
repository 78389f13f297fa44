//! An encrypted connection without its socket: ciphertext in, plaintext out, and the other way round.
//!
//! Lives here:       the handshake and the records, by OpenSSL; handing it a pre-shared key, which the crate `openssl` cannot do for both suites.
//! Lives elsewhere:  choosing the key (`hello`), sockets (`target::link`, `host::secure`).
//! Implements:       spec:RFC-8446.
//!
//! Memory: ciphertext that was received and not read ([`INCOMING_BYTES`]), ciphertext that is not sent ([`OUTGOING_BYTES`] and one record), and what
//! OpenSSL holds, two records at most while there is something in them.

#![allow(unsafe_code, reason = "OpenSSL's functions for external pre-shared keys have no binding")]

use super::TlsError;
use super::derive::{Psk, Suite};
use foreign_types::ForeignTypeRef;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslRef, SslStream, SslVerifyMode,
    SslVersion,
};
use std::ffi::{c_int, c_uchar, c_void};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::OnceLock;

/// Bytes of ciphertext that are received at a time, after the handshake and during it.
const INCOMING_BYTES: usize = 64 << 10;
const HANDSHAKE_BYTES: usize = 20 << 10;
/// No more is encrypted while so many bytes of ciphertext are not sent.
const OUTGOING_BYTES: usize = 64 << 10;
/// Plaintext of one record, at most.
const RECORD_BYTES: usize = 16 << 10;

/// Ciphertext between OpenSSL and the socket.
struct Pipe {
    incoming: Box<[u8]>,
    begin: usize,
    end: usize,
    outgoing: Vec<u8>,
    sent: usize,
}

impl Pipe {
    fn new() -> Pipe {
        let incoming = vec![0; HANDSHAKE_BYTES].into_boxed_slice();
        Pipe { incoming, begin: 0, end: 0, outgoing: Vec::new(), sent: 0 }
    }

    /// Room for a whole record, and more of them after the handshake.
    fn space(&mut self) -> &mut [u8] {
        if self.begin > 0 {
            self.incoming.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        &mut self.incoming[self.end..]
    }

    fn grow(&mut self) {
        let mut incoming = vec![0; INCOMING_BYTES].into_boxed_slice();
        incoming[..self.incoming.len()].copy_from_slice(&self.incoming);
        self.incoming = incoming;
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.end - self.begin);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        into[..count].copy_from_slice(&self.incoming[self.begin..][..count]);
        self.begin += count;
        Ok(count)
    }
}

impl Write for Pipe {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(from);
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What came of decrypting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decrypted {
    /// So many bytes of plaintext.
    Bytes(usize),
    /// More ciphertext is needed.
    Nothing,
    /// The other end sends nothing more.
    Closed,
}

/// See the module.
pub(crate) struct Channel {
    stream: SslStream<Pipe>,
    is_open: bool,
    /// There is plaintext, or may be, that nobody has taken.
    has_unread: bool,
    /// Small pieces of plaintext that become one record.
    record: Vec<u8>,
}

impl Channel {
    /// The end of a host.
    pub(crate) fn client(psk: Psk) -> Result<Channel, TlsError> {
        let mut channel = Channel::new(psk, Side::Client).map_err(|error| TlsError::Library(error.to_string()))?;
        channel.handshake()?;
        Ok(channel)
    }

    /// The end of a target that has received a ClientHello which names the key.
    pub(crate) fn server(psk: Psk, hello: &[u8]) -> Result<Channel, TlsError> {
        let mut channel = Channel::new(psk, Side::Server).map_err(|error| TlsError::Library(error.to_string()))?;
        let pipe = channel.stream.get_mut();
        pipe.space()[..hello.len()].copy_from_slice(hello);
        pipe.end += hello.len();
        Ok(channel)
    }

    fn new(psk: Psk, side: Side) -> Result<Channel, ErrorStack> {
        let mut ssl = Ssl::new(context(side, psk.suite)?)?;
        ssl.set_ex_data(psk_index()?, psk);
        offer(&mut ssl, side);
        let stream = SslStream::new(ssl, Pipe::new())?;
        Ok(Channel { stream, is_open: false, has_unread: false, record: Vec::new() })
    }

    /// Whether the handshake is over.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Continues with the handshake as far as the ciphertext allows.
    pub(crate) fn handshake(&mut self) -> Result<(), TlsError> {
        match self.stream.do_handshake() {
            Ok(()) => {
                let ssl = self.stream.ssl();
                let suite = ssl.current_cipher().and_then(|cipher| cipher.standard_name());
                let is_expected = |psk: &Psk| ssl.session_reused() && suite == Some(psk.suite.name());
                // Without the key, the other end could be anybody.
                let psk = psk_index().ok().and_then(|index| ssl.ex_data(index));
                if ssl.version2() != Some(SslVersion::TLS1_3) || !psk.is_some_and(is_expected) {
                    return Err(TlsError::Handshake("the other end did not use the key".into()));
                }
                self.is_open = true;
                self.has_unread = true; // what came with the last message
                self.stream.get_mut().grow();
                Ok(())
            }
            Err(error) if is_waiting(&error) => Ok(()),
            Err(error) => Err(refusal(&error)),
        }
    }

    /// The suite that is used.
    pub(crate) fn suite(&self) -> &'static str {
        self.stream.ssl().current_cipher().and_then(|cipher| cipher.standard_name()).unwrap_or("none")
    }

    /// Where to receive ciphertext.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.stream.get_mut().space()
    }

    /// This many bytes were received.
    pub(crate) fn received(&mut self, count: usize) {
        let pipe = self.stream.get_mut();
        pipe.end += count;
        assert!(pipe.end <= pipe.incoming.len(), "no more can be received than there is space");
    }

    /// Whether there may be plaintext without receiving anything.
    pub(crate) fn has_unread(&self) -> bool {
        self.has_unread
    }

    /// Takes plaintext, as much as fits.
    pub(crate) fn decrypt(&mut self, space: &mut [u8]) -> Result<Decrypted, TlsError> {
        let mut count = 0;
        self.has_unread = true;
        while count < space.len() {
            match self.stream.ssl_read(&mut space[count..]) {
                Ok(read) => count += read,
                Err(error) if is_waiting(&error) => {
                    self.has_unread = false;
                    break;
                }
                Err(_) if count > 0 => break, // the next call has the same result
                Err(error) if error.code() == ErrorCode::ZERO_RETURN => return Ok(Decrypted::Closed),
                Err(error) => return Err(TlsError::Broken(text_of(&error))),
            }
        }
        Ok(if count > 0 { Decrypted::Bytes(count) } else { Decrypted::Nothing })
    }

    /// Encrypts the beginning of some pieces of plaintext, as one record. Returns how many bytes, none while too much is not sent.
    pub(crate) fn encrypt(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize, TlsError> {
        let Some(first) = pieces.first() else { return Ok(0) };
        if self.unsent().len() >= OUTGOING_BYTES {
            return Ok(0);
        }
        let is_whole = first.len() >= RECORD_BYTES || pieces.len() == 1;
        if !is_whole {
            self.record.clear();
            for piece in pieces {
                let room = RECORD_BYTES - self.record.len();
                self.record.extend_from_slice(&piece[..room.min(piece.len())]);
            }
        }
        let plaintext = if is_whole { &first[..first.len().min(RECORD_BYTES)] } else { &self.record[..] };
        // The pipe takes everything, so this never waits.
        self.stream.ssl_write(plaintext).map_err(|error| TlsError::Broken(text_of(&error)))
    }

    /// Ciphertext to send.
    pub(crate) fn unsent(&self) -> &[u8] {
        let pipe = self.stream.get_ref();
        &pipe.outgoing[pipe.sent..]
    }

    /// This many bytes of it were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        let pipe = self.stream.get_mut();
        pipe.sent += count;
        if pipe.sent == pipe.outgoing.len() {
            pipe.outgoing.clear();
            pipe.sent = 0;
        }
    }

    /// Time has passed: keeps no memory if there is nothing to send.
    pub(crate) fn rest(&mut self) {
        if self.unsent().is_empty() {
            self.stream.get_mut().outgoing = Vec::new();
            self.record = Vec::new();
        }
    }
}

fn is_waiting(error: &openssl::ssl::Error) -> bool {
    matches!(error.code(), ErrorCode::WANT_READ | ErrorCode::WANT_WRITE)
}

/// What went wrong, as OpenSSL calls it.
fn text_of(error: &openssl::ssl::Error) -> String {
    let stack = error.ssl_error().map(ErrorStack::errors).unwrap_or_default();
    let reason = stack.last().and_then(|error| error.reason());
    reason.map_or_else(|| "the connection ended".to_owned(), str::to_owned)
}

/// Numbers of OpenSSL's errors: a record of no such version, and alerts 51, 115 of the other end.
const WRONG_VERSION: c_int = 267;
const ALERTS_OF_KEYS: [c_int; 2] = [1000 + 51, 1000 + 115];

fn refusal(error: &openssl::ssl::Error) -> TlsError {
    let stack = error.ssl_error().map(ErrorStack::errors).unwrap_or_default();
    match stack.last().map(|error| error.reason_code()) {
        Some(WRONG_VERSION) => TlsError::NotSpoken,
        Some(code) if ALERTS_OF_KEYS.contains(&code) => TlsError::KeyRefused,
        _ => TlsError::Handshake(text_of(error)),
    }
}

/// Which end of a connection this is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// What all connections of a side with a suite have in common. No other suite is offered or accepted than that of the key: OpenSSL would choose
/// another one first, and then do without the key.
fn context(side: Side, suite: Suite) -> Result<&'static SslContext, ErrorStack> {
    static CONTEXTS: [OnceLock<SslContext>; 4] = [const { OnceLock::new() }; 4];
    let place = &CONTEXTS[2 * usize::from(side == Side::Server) + usize::from(suite == Suite::Aes256GcmSha384)];
    if let Some(context) = place.get() {
        return Ok(context);
    }
    let mut builder =
        SslContextBuilder::new(if side == Side::Server { SslMethod::tls_server() } else { SslMethod::tls_client() })?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_ciphersuites(suite.name())?;
    builder.set_options(SslOptions::NO_TICKET | SslOptions::NO_COMPRESSION);
    builder.set_mode(SslMode::RELEASE_BUFFERS | SslMode::ENABLE_PARTIAL_WRITE | SslMode::ACCEPT_MOVING_WRITE_BUFFER);
    // No certificates: one that the other end shows instead of using the key is refused.
    builder.set_verify(SslVerifyMode::PEER);
    if side == Side::Server {
        builder.set_num_tickets(0)?;
        // OpenSSL requires one to take up a session, as which it sees a key.
        builder.set_session_id_context(b"kaml")?;
    }
    Ok(place.get_or_init(|| builder.build()))
}

/// Where a connection keeps its key for the callbacks.
fn psk_index() -> Result<Index<Ssl, Psk>, ErrorStack> {
    static INDEX: OnceLock<Index<Ssl, Psk>> = OnceLock::new();
    match INDEX.get() {
        Some(index) => Ok(*index),
        None => {
            let index = Ssl::new_ex_index()?;
            Ok(*INDEX.get_or_init(|| index))
        }
    }
}

// --- OpenSSL's functions for external keys ---------------------------------------------------------------------------------------

type FindSession =
    unsafe extern "C" fn(*mut openssl_sys::SSL, *const c_uchar, usize, *mut *mut openssl_sys::SSL_SESSION) -> c_int;
type UseSession = unsafe extern "C" fn(
    *mut openssl_sys::SSL,
    *const c_void,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut openssl_sys::SSL_SESSION,
) -> c_int;

unsafe extern "C" {
    fn SSL_set_psk_find_session_callback(ssl: *mut openssl_sys::SSL, callback: Option<FindSession>);
    fn SSL_set_psk_use_session_callback(ssl: *mut openssl_sys::SSL, callback: Option<UseSession>);
    fn SSL_CIPHER_find(ssl: *mut openssl_sys::SSL, code: *const c_uchar) -> *const openssl_sys::SSL_CIPHER;
    fn SSL_SESSION_new() -> *mut openssl_sys::SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut openssl_sys::SSL_SESSION, key: *const c_uchar, bytes: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut openssl_sys::SSL_SESSION, cipher: *const openssl_sys::SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut openssl_sys::SSL_SESSION, version: c_int) -> c_int;
}

/// Has OpenSSL call back for the key.
fn offer(ssl: &mut SslRef, side: Side) {
    let ssl = ssl.as_ptr();
    // SAFETY: `ssl` is a connection, and the callbacks are functions of the types that OpenSSL documents.
    unsafe {
        match side {
            Side::Client => {
                openssl_sys::SSL_set_connect_state(ssl);
                SSL_set_psk_use_session_callback(ssl, Some(use_session));
            }
            Side::Server => {
                openssl_sys::SSL_set_accept_state(ssl);
                SSL_set_psk_find_session_callback(ssl, Some(find_session));
            }
        }
    }
}

/// The key of a connection.
///
/// # Safety
/// `ssl` is a connection that OpenSSL has handed to a callback; the key lives as long as it.
unsafe fn psk_of<'a>(ssl: *mut openssl_sys::SSL) -> Option<&'a Psk> {
    let index = psk_index().ok()?;
    // SAFETY: the caller vouches for the pointer, and nothing changes the key while the connection exists.
    unsafe { SslRef::from_ptr(ssl) }.ex_data(index)
}

/// A session that has the key, which the caller owns; null if there is no memory.
///
/// # Safety
/// `ssl` is a connection.
unsafe fn session(ssl: *mut openssl_sys::SSL, psk: &Psk) -> *mut openssl_sys::SSL_SESSION {
    let code = psk.suite.code().to_be_bytes();
    // SAFETY: a new session is used by nobody else, the key is as long as stated, and each pointer is checked before it is used.
    unsafe {
        let cipher = SSL_CIPHER_find(ssl, code.as_ptr());
        let session = SSL_SESSION_new();
        if cipher.is_null() || session.is_null() {
            openssl_sys::SSL_SESSION_free(session);
            return std::ptr::null_mut();
        }
        let is_set = SSL_SESSION_set1_master_key(session, psk.secret.as_ptr(), psk.secret.len()) == 1
            && SSL_SESSION_set_cipher(session, cipher) == 1
            && SSL_SESSION_set_protocol_version(session, openssl_sys::TLS1_3_VERSION) == 1;
        if !is_set {
            openssl_sys::SSL_SESSION_free(session);
            return std::ptr::null_mut();
        }
        session
    }
}

/// Of a target: the key that an identity names. No session means that it is not known, which is no error.
unsafe extern "C" fn find_session(
    ssl: *mut openssl_sys::SSL,
    identity: *const c_uchar,
    identity_bytes: usize,
    found: *mut *mut openssl_sys::SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL passes its connection, an identity of this length, and a place for a session that it takes over.
    unsafe {
        *found = std::ptr::null_mut();
        let Some(psk) = psk_of(ssl) else { return 0 };
        if identity_bytes > 0 && std::slice::from_raw_parts(identity, identity_bytes) == psk.identity.as_bytes() {
            *found = session(ssl, psk);
            return c_int::from(!(*found).is_null());
        }
        1
    }
}

/// Of a host: the key and its identity, if its hash function is the one that the target requires.
unsafe extern "C" fn use_session(
    ssl: *mut openssl_sys::SSL,
    _hash: *const c_void,
    identity: *mut *const c_uchar,
    identity_bytes: *mut usize,
    used: *mut *mut openssl_sys::SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL passes its connection and three places: for an identity, which lives as long as the connection, and for a session that it
    // takes over. It does not use a session with another hash function than the one it passes.
    unsafe {
        *used = std::ptr::null_mut();
        let Some(psk) = psk_of(ssl) else { return 0 };
        (*identity, *identity_bytes) = (psk.identity.as_ptr(), psk.identity.len());
        *used = session(ssl, psk);
        c_int::from(!(*used).is_null())
    }
}
