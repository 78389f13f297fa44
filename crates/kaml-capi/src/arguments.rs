//! What C hands in: pointers and lengths become references, once, here.
//!
//! Lives here:       every pointer that is followed, and the memory of values that C is given.
//! May be called by: the functions of the API.
//!
//! The contract that all `unsafe` functions here and all functions of the API share, and that the header states:
//! - a pointer with a length is null (then the length is 0) or leads to that many readable elements;
//! - a string ends with a zero byte;
//! - what a pointer for an answer leads to can be written;
//! - nobody changes any of it from another thread during the call.
//!
//! Null, misaligned pointers and impossible lengths are refused. References live as long as the call, no longer:
//! nothing keeps them.

use crate::device::KAML_NAME_BYTES;
use crate::failure::Failure;
use crate::ranges::kaml_item;
use crate::status::kaml_status::{KAML_BAD_NAME, KAML_BATCH_TOO_LARGE, KAML_NO_RESOURCES};
use kaml::{Device, KEY_BYTES_MAX, Key, KeyRef};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

/// A place for an answer.
pub(crate) struct Out<T>(NonNull<T>);

impl<T: Copy> Out<T> {
    /// A place that must exist.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Result<Out<T>, Failure> {
        Ok(Out(checked(pointer, what)?))
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: not null and aligned, which `new` checked, and writable, which its caller promised.
        unsafe { self.0.write(value) }
    }
}

/// A value's place for an answer: a pointer and a length.
pub(crate) struct ValueOut {
    value: Out<*mut c_void>,
    length: Out<usize>,
}

impl ValueOut {
    /// Both are set to nothing, so a caller that overlooks an error frees nothing.
    pub(crate) unsafe fn new(value: *mut *mut c_void, length: *mut usize) -> Result<ValueOut, Failure> {
        // SAFETY: the caller's promise is the same.
        let out = unsafe { ValueOut { value: Out::new(value, "value")?, length: Out::new(length, "value_length")? } };
        out.value.set(std::ptr::null_mut());
        out.length.set(0);
        Ok(out)
    }

    /// Returns a copy that the caller frees.
    pub(crate) fn set(&self, bytes: &[u8]) -> Result<(), Failure> {
        // At least one byte: a null pointer would not be a value of length 0.
        // SAFETY: `malloc` takes any size.
        let copy = unsafe { libc::malloc(bytes.len().max(1)) };
        if copy.is_null() {
            return Err(Failure::new(KAML_NO_RESOURCES, format!("no memory for a value of {} bytes", bytes.len())));
        }
        // SAFETY: `copy` has room for them and is new, so it overlaps nothing.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len()) };
        self.value.set(copy);
        self.length.set(bytes.len());
        Ok(())
    }
}

/// The caller's buffer for a value.
pub(crate) struct BufferOut {
    start: *mut u8,
    bytes_max: usize,
    length: Out<usize>,
}

impl BufferOut {
    pub(crate) unsafe fn new(buffer: *mut c_void, bytes_max: usize, length: *mut usize) -> Result<BufferOut, Failure> {
        // SAFETY: the caller's promise is the same.
        let length = unsafe { Out::new(length, "value_length")? };
        length.set(0);
        let start = if bytes_max == 0 { std::ptr::null_mut() } else { checked(buffer.cast(), "buffer")?.as_ptr() };
        check_length(bytes_max, 1, "buffer")?;
        Ok(BufferOut { start, bytes_max, length })
    }

    /// Returns the length, and the value if it fits; nothing of it if not.
    pub(crate) fn set(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.length.set(bytes.len());
        if bytes.len() > self.bytes_max {
            let message = format!("the value has {} bytes, the buffer {}", bytes.len(), self.bytes_max);
            return Err(Failure::new(crate::status::kaml_status::KAML_BUFFER_TOO_SMALL, message));
        }
        if !bytes.is_empty() {
            // SAFETY: the buffer is not null and has room for them, which `new` checked and its caller promised; the
            // library's own memory does not overlap it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, bytes.len()) };
        }
        Ok(())
    }
}

/// A batch of records for an answer: an array and its length.
pub(crate) struct ItemsOut {
    items: Out<*mut kaml_item>,
    count: Out<usize>,
}

impl ItemsOut {
    /// Both are set to nothing, so a caller that overlooks an error frees nothing.
    pub(crate) unsafe fn new(items: *mut *mut kaml_item, count: *mut usize) -> Result<ItemsOut, Failure> {
        // SAFETY: the caller's promise is the same.
        let out = unsafe { ItemsOut { items: Out::new(items, "items")?, count: Out::new(count, "item_count")? } };
        out.items.set(std::ptr::null_mut());
        out.count.set(0);
        Ok(out)
    }

    /// Returns copies in one piece of memory that the caller frees: the array, and then keys and values. Nothing if there are none.
    pub(crate) fn set<'a>(
        &self,
        found: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    ) -> Result<(), Failure> {
        let (mut count, mut bytes) = (0, 0);
        for (key, value) in found.clone() {
            count += 1;
            bytes += size_of::<kaml_item>() + key.len() + value.map_or(0, <[u8]>::len);
        }
        if count == 0 {
            return Ok(());
        }
        // One more byte: a value of no bytes at the end is in this memory, too.
        // SAFETY: `malloc` takes any size.
        let memory = unsafe { libc::malloc(bytes + 1) };
        if memory.is_null() {
            return Err(Failure::new(KAML_NO_RESOURCES, format!("no memory for a batch of {bytes} bytes")));
        }
        let items: *mut kaml_item = memory.cast();
        // SAFETY: the memory begins with the array.
        let mut free: *mut u8 = unsafe { items.add(count) }.cast();
        let mut copy = |bytes: &[u8]| {
            let at = free;
            // SAFETY: the sum above has room for all that is copied; the memory is new, so it overlaps nothing.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
                free = at.add(bytes.len());
            }
            at.cast_const().cast::<c_void>()
        };
        for (at, (key, value)) in found.enumerate() {
            let item = kaml_item {
                key: copy(key),
                key_length: key.len(),
                value: value.map_or(std::ptr::null(), &mut copy),
                value_length: value.map_or(0, <[u8]>::len),
            };
            // SAFETY: the array has a place for each; `malloc` aligns it for anything.
            unsafe { items.add(at).write(item) };
        }
        self.items.set(items);
        self.count.set(count);
        Ok(())
    }
}

/// Elements; none if the count is 0, whatever the pointer.
#[inline(always)]
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let start = checked(pointer.cast_mut(), what)?;
    check_length(count, size_of::<T>(), what)?;
    // SAFETY: not null, aligned, not above the largest size (just checked); readable and unchanging, which the caller
    // promised.
    Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), count) })
}

/// The same, of a count that is `max` at most: more is refused unread.
pub(crate) unsafe fn few<'a, T>(pointer: *const T, count: usize, max: usize, what: &str) -> Result<&'a [T], Failure> {
    if count > max {
        return Err(Failure::argument(format!("{what}: {count} of them; there may be {max}")));
    }
    // SAFETY: the caller's promise is the same.
    unsafe { slice(pointer, count, what) }
}

/// Elements that can be written; they were initialised by their owner or consist of integers that the call overwrites
/// before it reads them.
pub(crate) unsafe fn slice_out<'a, T: Copy>(
    pointer: *mut T,
    count: usize,
    what: &str,
) -> Result<&'a mut [std::mem::MaybeUninit<T>], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    let start = checked(pointer, what)?;
    check_length(count, size_of::<T>(), what)?;
    // SAFETY: as in `slice`; writable and nobody else's during the call, which the caller promised; what is in there is
    // not assumed to be anything.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), count) })
}

/// What a device takes. A length above it is refused before the memory is read: it is likely to be wrong.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    value_bytes_max: u64,
    batch_bytes_max: u64,
}

/// Bytes of the ring that a record takes at least.
const RECORD_RING_BYTES: u64 = 24;

impl Limits {
    pub(crate) fn of(device: &Device) -> Limits {
        let info = device.info();
        Limits { value_bytes_max: info.value_bytes_max, batch_bytes_max: info.batch_bytes_max }
    }

    /// A value that is put.
    pub(crate) unsafe fn value<'a>(&self, pointer: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
        let (bytes, max) = (length as u64, self.value_bytes_max);
        if bytes > max {
            return Err(kaml::Error::ValueTooLarge { bytes, max, namespace: None }.into());
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self::bytes(pointer, length, "value") }
    }

    /// The records of a Put.
    pub(crate) unsafe fn records<'a, T>(&self, pointer: *const T, count: usize) -> Result<&'a [T], Failure> {
        check_length(count, size_of::<T>(), "records")?;
        if count as u64 > self.batch_bytes_max / RECORD_RING_BYTES {
            let (max, least) = (self.batch_bytes_max, RECORD_RING_BYTES);
            let message =
                format!("a batch of {count} records; one Put takes at most {max} bytes, and a record {least} at least");
            return Err(Failure::new(KAML_BATCH_TOO_LARGE, message));
        }
        // SAFETY: the caller's promise is the same.
        unsafe { slice(pointer, count, "records") }
    }
}

/// Bytes of a key or a value.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(pointer: *const c_void, length: usize, what: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller's promise is the same.
    unsafe { slice(pointer.cast(), length, what) }
}

/// A key of any length.
#[inline(always)]
pub(crate) unsafe fn key<'a>(pointer: *const c_void, length: usize) -> Result<KeyRef<'a>, Failure> {
    // SAFETY: the caller's promise is the same.
    let bytes = unsafe { key_bytes(pointer, length)? };
    Ok(if length <= Key::BYTES_MAX { Key::new(bytes)?.into() } else { bytes.into() })
}

/// The bytes of a key of any length.
#[inline(always)]
pub(crate) unsafe fn key_bytes<'a>(pointer: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 || length > KEY_BYTES_MAX {
        // Not read at all: a length that no key has is likely to be of something else.
        return Err(bad_key(length));
    }
    // SAFETY: the caller's promise is the same.
    unsafe { bytes(pointer, length, "key") }
}

/// A key of a versioned namespace.
pub(crate) unsafe fn short_key(pointer: *const c_void, length: usize) -> Result<Key, Failure> {
    if length > Key::BYTES_MAX {
        return Err(
            kaml_device::KeyError { len: length, must: "keys of versioned namespaces have 1 to 16 bytes" }.into()
        );
    }
    // SAFETY: the caller's promise is the same.
    Ok(Key::new(unsafe { bytes(pointer, length, "key") }?)?)
}

/// One structure.
pub(crate) unsafe fn structure<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise is the same, for one element.
    unsafe { slice(pointer, 1, what) }.map(|one| &one[0])
}

/// One structure that begins with its own size, which its `KAML_..._INIT` macro fills in.
pub(crate) unsafe fn sized<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: it begins with its size; the caller promised the other bytes.
    unsafe { check_size(pointer, what)? };
    // SAFETY: the caller's promise is the same.
    unsafe { structure(pointer, what) }
}

/// A place for an answer that begins with its own size.
pub(crate) unsafe fn sized_out<T: Copy>(pointer: *mut T, what: &str) -> Result<Out<T>, Failure> {
    // SAFETY: it begins with its size; the caller promised the other bytes.
    unsafe { check_size(pointer.cast_const(), what)? };
    // SAFETY: the caller's promise is the same.
    unsafe { Out::new(pointer, what) }
}

/// One that nobody initialised, or that was made for another version, is refused.
unsafe fn check_size<T>(pointer: *const T, what: &str) -> Result<(), Failure> {
    // SAFETY: the caller's promise is the same, for the first element.
    match *unsafe { structure(pointer.cast::<usize>(), what)? } {
        size if size == size_of::<T>() => Ok(()),
        size => {
            let expected = size_of::<T>();
            Err(Failure::argument(format!("{what}: struct_size is {size}, not {expected} (not initialised?)")))
        }
    }
}

/// One structure that can be written.
pub(crate) unsafe fn structure_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    let mut start = checked(pointer, what)?;
    // SAFETY: not null and aligned (just checked); initialised, writable and nobody else's during the call, which the
    // caller promised.
    Ok(unsafe { start.as_mut() })
}

/// A path: any bytes.
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: the caller's promise is the same.
    let path = unsafe { string(pointer, "path")? };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// The name of a namespace: UTF-8.
pub(crate) unsafe fn name<'a>(pointer: *const c_char) -> Result<&'a str, Failure> {
    let start = checked(pointer.cast_mut(), "name")?;
    // SAFETY: not null (just checked); readable up to its zero byte, after which `strnlen` does not read.
    if unsafe { libc::strnlen(start.as_ptr(), KAML_NAME_BYTES) } == KAML_NAME_BYTES {
        let message =
            format!("a namespace name of {KAML_NAME_BYTES} bytes or more; the longest has {}", KAML_NAME_BYTES - 1);
        return Err(Failure::new(KAML_BAD_NAME, message));
    }
    // SAFETY: the caller's promise is the same.
    let name = unsafe { string(pointer, "name")? };
    name.to_str().map_err(|_| Failure::new(KAML_BAD_NAME, format!("namespace name {name:?}: not UTF-8")))
}

unsafe fn string<'a>(pointer: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    let start = checked(pointer.cast_mut(), what)?;
    // SAFETY: not null (just checked), ends with a zero byte and does not change, which the caller promised.
    Ok(unsafe { CStr::from_ptr(start.as_ptr()) })
}

/// Text as C has it in an array: cut off where it is longer, and ended with a zero byte.
pub(crate) fn text<const BYTES: usize>(text: &str) -> [c_char; BYTES] {
    let end = (0..BYTES.min(text.len() + 1)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let mut array = [0; BYTES];
    array.iter_mut().zip(text[..end].bytes()).for_each(|(to, byte)| *to = byte as c_char);
    array
}

// What each call does is inlined, and what fails is not: a get of a cached record takes a few hundred instructions altogether.
#[inline(always)]
fn checked<T>(pointer: *mut T, what: &str) -> Result<NonNull<T>, Failure> {
    match NonNull::new(pointer) {
        Some(start) if start.is_aligned() => Ok(start),
        Some(_) | None => Err(refused(pointer.cast(), align_of::<T>(), what)),
    }
}

#[cold]
#[inline(never)]
fn refused(pointer: *mut c_void, align: usize, what: &str) -> Failure {
    match pointer.is_null() {
        true => Failure::argument(format!("{what}: a null pointer")),
        false => Failure::argument(format!("{what}: {pointer:p} is not aligned to {align} bytes")),
    }
}

#[cold]
#[inline(never)]
fn bad_length(count: usize, what: &str) -> Failure {
    Failure::argument(format!("{what}: a length of {count}"))
}

#[cold]
#[inline(never)]
fn bad_key(length: usize) -> Failure {
    kaml_device::KeyError { len: length, must: "keys have 1 to 1024 bytes" }.into()
}

/// No object is larger than half the address space; a length that is was negative once.
#[inline(always)]
fn check_length(count: usize, element_bytes: usize, what: &str) -> Result<(), Failure> {
    match count.checked_mul(element_bytes) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        Some(_) | None => Err(bad_length(count, what)),
    }
}

/// Frees a value that the library returned. A null pointer is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaml_free(value: *mut c_void) {
    // SAFETY: the caller promises that it is null or came from `ValueOut::set`, and is freed once.
    unsafe { libc::free(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   text is cut off between two characters, and always ended.
    /// Method: characters of one and two bytes, in arrays around their length.
    #[test]
    fn text_is_cut_off_between_characters() {
        let back = |array: &[c_char]| array.iter().map(|byte| *byte as u8).collect::<Vec<_>>();
        assert_eq!(back(&text::<1>("a\u{e4}b")), b"\0");
        assert_eq!(back(&text::<3>("a\u{e4}b")), b"a\0\0");
        assert_eq!(back(&text::<4>("a\u{e4}b")), b"a\xc3\xa4\0");
        assert_eq!(back(&text::<6>("a\u{e4}b")), b"a\xc3\xa4b\0\0");
    }
}
