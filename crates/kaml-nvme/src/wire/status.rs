//! Completion status: what every command completes with.
//!
//! Lives here:       status code types and codes as the specification numbers them, and the 16-bit field.
//! Implements:       spec:NVMe-Base "Status Field"; spec:NVMe-KV "Status Values"; spec:NVMe-oF "Connect Response".

use std::fmt;

/// The status field of a completion, without the phase bit.
///
/// | bits | field |
/// |-----:|-------|
/// | 0 | phase, always 0 over fabrics |
/// | 8:1 | status code |
/// | 11:9 | status code type |
/// | 13:12 | retry delay |
/// | 14 | more information in the error log |
/// | 15 | do not retry |
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

const DO_NOT_RETRY: u16 = 1 << 15;

macro_rules! statuses {
    ($($name:ident = $kind:literal, $code:literal $(, $dnr:ident)?; $text:literal)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Status = Status($kind << 9 | $code << 1 $(| statuses!($dnr))?);)*
        }

        const NAMES: &[(Status, &str)] = &[$((Status::$name, $text)),*];
    };
    (dnr) => { DO_NOT_RETRY };
}

statuses! {
    SUCCESS = 0, 0x00; "successful completion"
    INVALID_OPCODE = 0, 0x01, dnr; "invalid command opcode"
    INVALID_FIELD = 0, 0x02, dnr; "invalid field in command"
    NO_SUCH_PROPERTY = 0, 0x02; "no such property"
    DATA_TRANSFER = 0, 0x04; "data transfer error"
    INTERNAL = 0, 0x06; "internal error"
    ABORT_REQUESTED = 0, 0x07; "command abort requested"
    INVALID_NAMESPACE = 0, 0x0b, dnr; "invalid namespace or format"
    COMMAND_SEQUENCE = 0, 0x0c, dnr; "command sequence error"
    INVALID_SGL = 0, 0x0d, dnr; "invalid SGL segment descriptor"
    SGL_LENGTH = 0, 0x0f, dnr; "data SGL length invalid"
    SGL_TYPE = 0, 0x11, dnr; "SGL descriptor type invalid"
    OPERATION_DENIED = 0, 0x15, dnr; "operation denied"
    SGL_OFFSET = 0, 0x16, dnr; "SGL offset invalid"
    HOST_ID_FORMAT = 0, 0x18, dnr; "host identifier inconsistent format"
    WRITE_PROTECTED = 0, 0x20, dnr; "namespace is write protected"
    TRANSPORT = 0, 0x22; "transient transport error"
    LBA_OUT_OF_RANGE = 0, 0x80, dnr; "LBA out of range"
    CAPACITY_EXCEEDED = 0, 0x81, dnr; "capacity exceeded"
    NOT_READY = 0, 0x82; "namespace not ready"
    RESERVATION_CONFLICT = 0, 0x83, dnr; "reservation conflict"
    INVALID_VALUE_SIZE = 0, 0x85, dnr; "invalid value size"
    INVALID_KEY_SIZE = 0, 0x86, dnr; "invalid key size"
    NO_SUCH_KEY = 0, 0x87, dnr; "KV key does not exist"
    UNRECOVERED = 0, 0x88; "unrecovered error"
    KEY_EXISTS = 0, 0x89, dnr; "KV key exists"
    EVENT_LIMIT = 1, 0x05; "asynchronous event request limit exceeded"
    INVALID_LOG_PAGE = 1, 0x09, dnr; "invalid log page"
    INVALID_FORMAT = 1, 0x0a, dnr; "invalid format"
    NOT_SAVEABLE = 1, 0x0d, dnr; "feature identifier not saveable"
    NOT_CHANGEABLE = 1, 0x0e, dnr; "feature not changeable"
    NAMESPACE_ATTACHED = 1, 0x18, dnr; "namespace already attached"
    NAMESPACE_NOT_ATTACHED = 1, 0x1a, dnr; "namespace not attached"
    INVALID_CONTROLLER_LIST = 1, 0x1c, dnr; "controller list invalid"
    INSUFFICIENT_CAPACITY = 1, 0x15, dnr; "namespace insufficient capacity"
    NAMESPACE_IDS_EXHAUSTED = 1, 0x16, dnr; "namespace identifier unavailable"
    COMMAND_SET_UNSUPPORTED = 1, 0x29, dnr; "I/O command set not supported"
    CONNECT_FORMAT = 1, 0x80, dnr; "connect: incompatible format"
    CONNECT_BUSY = 1, 0x81; "connect: controller busy"
    CONNECT_PARAMETERS = 1, 0x82, dnr; "connect: invalid parameters"
    CONNECT_HOST = 1, 0x84, dnr; "connect: invalid host"
    AUTHENTICATION_REQUIRED = 1, 0x91, dnr; "authentication required"
    NO_SUCH_LIST = 1, 0xc0, dnr; "no such list of keys"
    NO_SUCH_SNAPSHOT = 1, 0xc1, dnr; "no such snapshot"
    TOO_FAR_BACK = 1, 0xc2, dnr; "more changes than are known of the key"
    NO_VERSIONS = 1, 0xc3, dnr; "the namespace keeps no versions"
    OUTCOME_FORGOTTEN = 1, 0xc4, dnr; "the outcome of the command is not remembered any more"
    NOT_ORDERED = 1, 0xc5, dnr; "the keys of the namespace have no order"
    INVERTED_RANGE = 1, 0xc6, dnr; "the range ends before it begins"
    HAS_LONG_KEYS = 1, 0xc7, dnr; "the namespace has keys above 16 bytes, which List cannot return"
    TOO_MANY_SNAPSHOTS = 1, 0xc8, dnr; "the controller has 16 snapshots open"
    SNAPSHOT_TOO_OLD = 1, 0xc9, dnr; "the snapshot has expired"
    FELL_BEHIND = 1, 0xca, dnr; "the changes after the position are gone"
    BACKUP_BUSY = 1, 0xd0; "another backup of the device is in progress"
    NO_SUCH_BACKUP = 1, 0xd1, dnr; "no such backup, or it has ended"
    WRONG_BASE = 1, 0xd2, dnr; "the base is no backup of this device"
    NAMESPACE_DELETED = 1, 0xd3, dnr; "a namespace was deleted while it was backed up"
    WRITE_FAULT = 2, 0x80; "write fault"
    UNRECOVERED_READ = 2, 0x81, dnr; "unrecovered read error"
    COMPARE_FAILURE = 2, 0x85, dnr; "compare failure"
}

impl Status {
    /// From the field of a completion.
    pub fn from_field(field: u16) -> Status {
        Status(field & !1)
    }

    /// The field of a completion.
    pub fn field(self) -> u16 {
        self.0
    }

    /// The status code type: 0 generic, 1 command specific, 2 media, 3 path, 7 vendor.
    pub fn kind(self) -> u8 {
        (self.0 >> 9 & 7) as u8
    }

    /// The status code.
    pub fn code(self) -> u8 {
        (self.0 >> 1) as u8
    }

    /// Whether sending the command again is known to be no use.
    pub fn do_not_retry(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Whether the command was executed.
    pub fn is_success(self) -> bool {
        self.kind() == 0 && self.code() == 0
    }

    /// Whether type and code are those of `other`, whatever the retry bits are.
    pub fn is(self, other: Status) -> bool {
        (self.kind(), self.code()) == (other.kind(), other.code())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(status, _)| self.is(*status)).map_or("unknown status", |(_, name)| name);
        write!(f, "{name} ({:x}/{:02x}h)", self.kind(), self.code())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the field is laid out as hosts read it.
    /// Method: values as Linux prints them (the field shifted right by one): 4087h is "key does not exist", not to be
    ///         retried; every code survives the way out and back.
    #[test]
    fn fields_are_as_hosts_read_them() {
        assert_eq!(Status::NO_SUCH_KEY.field() >> 1, 0x4087);
        assert_eq!(Status::INVALID_LOG_PAGE.field() >> 1, 0x4109);
        assert_eq!(Status::UNRECOVERED_READ.field() >> 1, 0x4281);
        for (status, _) in NAMES {
            assert_eq!(Status::from_field(status.field()), *status);
            assert_eq!(status.is_success(), *status == Status::SUCCESS);
        }
    }
}
