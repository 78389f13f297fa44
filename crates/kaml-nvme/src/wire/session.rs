//! Numbers of commands that must not take effect twice.
//!
//! Lives here:       beginning a session, where a command has its number.
//! Lives elsewhere:  the outcomes that a target remembers (`target::sessions`), sending again (`host::carrier`); the page for people
//!                   (`docs/nvme-vendor.md`).

use super::command::{Command, admin, kv};

/// The command that begins a session, or joins one.
pub fn begin(name: u128) -> Command {
    let mut command = Command::new(admin::BEGIN_SESSION, 0);
    let [a, b, c, d] = [0, 32, 64, 96].map(|shift| (name >> shift) as u32);
    (command.cdw10, command.cdw11, command.cdw12, command.cdw13) = (a.into(), b.into(), c.into(), d.into());
    command
}

/// The name of the session that a command begins.
pub fn name_of(command: &Command) -> u128 {
    let dwords = [command.cdw10, command.cdw11, command.cdw12, command.cdw13];
    dwords.iter().rev().fold(0, |name, dword| name << 32 | u128::from(dword.get()))
}

/// Whether a command can have a number.
pub fn is_numbered(opcode: u8) -> bool {
    matches!(opcode, kv::PUT | kv::DELETE_RANGE | kv::UNDO | kv::SNAPSHOT | kv::MERGE)
}

/// Gives a number to a command that can have one.
pub fn put_number(command: &mut Command, number: u32) {
    match command.opcode {
        kv::MERGE => command.cdw15 = number.into(),
        _ => command.cdw13 = number.into(),
    }
}

/// The number of a command; 0 if it has none.
pub fn number_of(command: &Command) -> u32 {
    match command.opcode {
        kv::MERGE => command.cdw15.get(),
        opcode if is_numbered(opcode) => command.cdw13.get(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   numbers and names are where the documentation puts them.
    /// Method: one of each, as bytes; a command that has no number.
    #[test]
    fn numbers_are_in_their_dwords() {
        let command = begin(0x0f0e0d0c_0b0a0908_07060504_03020100);
        assert_eq!(command.as_slice(), std::array::from_fn::<u8, 16, _>(|byte| byte as u8));
        assert_eq!(name_of(&command), 0x0f0e0d0c_0b0a0908_07060504_03020100);
        for (opcode, at) in [(kv::PUT, 52), (kv::DELETE_RANGE, 52), (kv::UNDO, 52), (kv::SNAPSHOT, 52), (kv::MERGE, 60)]
        {
            let mut command = Command::new(opcode, 1);
            put_number(&mut command, 7);
            assert_eq!((zerocopy::IntoBytes::as_bytes(&command)[at], number_of(&command)), (7, 7));
        }
        let mut store = Command::new(kv::STORE, 1);
        store.cdw13 = 7.into();
        assert_eq!(number_of(&store), 0);
    }

    impl Command {
        fn as_slice(&self) -> [u8; 16] {
            zerocopy::IntoBytes::as_bytes(self)[40..56].try_into().expect("sixteen of them")
        }
    }
}
