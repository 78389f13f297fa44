//! What went wrong, for the thread that it went wrong on.
//!
//! Lives here:       `call`, which every function of the API is made of; the message that `kaml_last_error` answers.
//! Lives elsewhere:  status codes (`status`).

use crate::device::kaml_namespace_id;
use crate::status::kaml_status;
use kaml::{KeyBuf, KeyRef};
use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed: its status, and the message with the names and numbers of this case.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: kaml_status,
    message: Message,
}

/// What `kaml_last_error` answers.
#[derive(Debug)]
enum Message {
    Text(Cow<'static, CStr>),
    /// Put into words when somebody asks: nothing is allocated for what happens often, unless the key is a long one.
    NoRecord {
        namespace_id: kaml_namespace_id,
        key: KeyBuf,
    },
}

impl Message {
    fn text(&mut self) -> &CStr {
        if let Message::NoRecord { namespace_id, key } = self {
            *self = Message::of(format!("namespace {namespace_id}: key {key} does not exist"));
        }
        match self {
            Message::Text(text) => text,
            Message::NoRecord { .. } => unreachable!("just put into words"),
        }
    }

    fn of(text: String) -> Message {
        Message::Text(c_string(&text).into())
    }
}

/// Names come from outside and may not contain what ends a C string.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

impl Failure {
    pub(crate) fn new(status: kaml_status, message: impl Into<String>) -> Failure {
        Failure { status, message: Message::of(message.into()) }
    }

    /// There is no record of a key.
    pub(crate) fn no_record(namespace_id: kaml_namespace_id, key: KeyRef<'_>) -> Failure {
        match key.to_buf() {
            Ok(key) => {
                Failure { status: kaml_status::KAML_NOT_FOUND, message: Message::NoRecord { namespace_id, key } }
            }
            Err(error) => error.into(),
        }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure::new(kaml_status::KAML_BAD_ARGUMENT, message)
    }

    fn panicked(payload: Box<dyn Any + Send>) -> Failure {
        let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => "no message".to_owned(),
        };
        // Whatever else it is might panic again when it is dropped.
        std::mem::forget(payload);
        Failure::new(kaml_status::KAML_INTERNAL, format!("a mistake in libkaml: {text}"))
    }
}

impl From<kaml::Error> for Failure {
    fn from(error: kaml::Error) -> Failure {
        (&error).into()
    }
}

impl From<&kaml::Error> for Failure {
    fn from(error: &kaml::Error) -> Failure {
        Failure::new(error.into(), error.to_string())
    }
}

impl From<kaml::store::IllegalMove> for Failure {
    fn from(error: kaml::store::IllegalMove) -> Failure {
        kaml::Error::from(error).into()
    }
}

impl From<kaml_device::KeyError> for Failure {
    fn from(error: kaml_device::KeyError) -> Failure {
        Failure::new(kaml_status::KAML_BAD_KEY, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<Message> = const { RefCell::new(Message::Text(Cow::Borrowed(c""))) };
}

/// Runs the body of a call. Nothing unwinds into C: a panic is returned with `KAML_INTERNAL`. What it may have left half
/// done is guarded by locks of the library that detect the panic. Later calls then return the same status.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> kaml_status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return kaml_status::KAML_OK,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::panicked(payload),
    };
    // A thread that is ending can have no place for messages any more; the status is enough.
    let _ = LAST.try_with(|last| *last.borrow_mut() = failure.message);
    failure.status
}

/// As [`call`], for destructors and finalizers: the message of an earlier failure is kept.
pub(crate) fn call_quietly(body: impl FnOnce() -> Result<(), Failure>) -> kaml_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => kaml_status::KAML_OK,
        Ok(Err(failure)) => failure.status,
        Err(payload) => Failure::panicked(payload).status,
    }
}

/// The message of the last call of this thread that did not return `KAML_OK`, with names and numbers; an empty string if
/// none did. Valid until the next call of this thread fails, or restores a message; never freed by the caller.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow_mut().text().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Restores a message that was copied from `kaml_last_error`. It is for destructors and finalizers, whose own calls can
/// fail between a call and the look at its message. `message` is copied; null is the empty string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_set_last_error(message: *const c_char) {
    // SAFETY: null, or a string, which the caller promised. It may be the message that it replaces: it is copied first.
    let text = if message.is_null() { c"".to_owned() } else { unsafe { CStr::from_ptr(message) }.to_owned() };
    let _ = LAST.try_with(|last| *last.borrow_mut() = Message::Text(text.into()));
}

/// The version of the library that is loaded, `"1.2.3"`; `KAML_VERSION` is that of the header, which may be older.
#[unsafe(no_mangle)]
pub extern "C" fn kaml_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no zero byte"),
    };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the string is valid until the next call of this thread fails.
        unsafe { CStr::from_ptr(kaml_last_error()) }.to_str().expect("UTF-8").to_owned()
    }

    /// Goal:   a panic becomes a status and a message, and calls continue afterwards.
    /// Method: panic with a text, with a string, and with something else.
    #[test]
    fn panics_stay_inside() {
        assert_eq!(call(|| panic!("text")), kaml_status::KAML_INTERNAL);
        assert_eq!(last(), "a mistake in libkaml: text");
        assert_eq!(call(|| panic!("number {}", 7)), kaml_status::KAML_INTERNAL);
        assert_eq!(last(), "a mistake in libkaml: number 7");
        assert_eq!(call(|| std::panic::panic_any(7)), kaml_status::KAML_INTERNAL);
        assert_eq!(last(), "a mistake in libkaml: no message");
        assert_eq!(call(|| Ok(())), kaml_status::KAML_OK);
    }

    /// Goal:   messages belong to their thread and survive calls that work; a zero byte does not cut them.
    /// Method: fail here, look here and elsewhere.
    #[test]
    fn messages_belong_to_their_thread() {
        call(|| Err(Failure::argument("a\0b")));
        call(|| Ok(()));
        assert_eq!(last(), "a\u{fffd}b");
        std::thread::spawn(|| assert_eq!(last(), "")).join().expect("it holds there too");
        call(|| Err(Failure::no_record(7, "ada".into())));
        for _ in 0..2 {
            assert_eq!(last(), "namespace 7: key ada does not exist");
        }
        let kept = CString::from(c"kept");
        // SAFETY: null and strings are taken; the second one is the message itself.
        unsafe {
            kaml_set_last_error(kept.as_ptr());
            kaml_set_last_error(kaml_last_error());
            assert_eq!(last(), "kept");
            kaml_set_last_error(std::ptr::null());
        }
        assert_eq!(last(), "");
    }
}
