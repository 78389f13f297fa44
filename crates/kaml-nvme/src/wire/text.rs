//! Text in fixed fields.
//!
//! Lives here:       space-padded ASCII, NUL-terminated names, and which names are NVMe qualified names.

/// Puts ASCII text into a field and fills it up with spaces; other characters become `?`, what is too long is cut.
pub fn put_ascii(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (byte, char) in field.iter_mut().zip(text.chars()) {
        *byte = if char.is_ascii_graphic() || char == ' ' { char as u8 } else { b'?' };
    }
}

/// Text from a space-padded field.
pub fn get_ascii(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches([' ', '\0']).to_owned()
}

/// Puts a name into a field, terminated by NUL; a name that does not fit is cut.
pub fn put_name(field: &mut [u8], name: &str) {
    field.fill(0);
    let len = name.len().min(field.len() - 1);
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
}

/// A qualified name from its field: NUL-terminated UTF-8 of at most 223 bytes that begins with `nqn.`.
pub fn get_nqn(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&field[..end]).ok().filter(|name| is_nqn(name))
}

/// Bytes of the longest qualified name (spec:NVMe-Base "NVMe Qualified Names").
pub const NQN_BYTES_MAX: usize = 223;

/// Whether a name is an NVMe qualified name.
pub fn is_nqn(name: &str) -> bool {
    name.starts_with("nqn.") && name.len() <= NQN_BYTES_MAX
}
