//! Authentication of our queues.
//!
//! Lives here:       what a host proves with, when it does, why it fails.
//! Lives elsewhere:  the protocol (`auth`), connecting (`controller`).

use super::{Error, Queue};
use crate::auth::{Draw, Parties, Prover, Refusal, Secret, Step, Strength};
use crate::wire::auth::{Carrier, MESSAGE_BYTES_MAX, Reason};
use crate::wire::fabrics::Connect;
use zeroize::Zeroizing;

/// What a host proves itself with, and what it needs a target to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The secret of the host.
    pub secret: Secret,
    /// The secret of the controller, if the host connects only to the right one.
    pub controller_secret: Option<Secret>,
    /// What authentication must use at least.
    pub strength: Strength,
}

impl Credentials {
    /// With any hash function and group. With a secret of the controller, the target has to prove itself too.
    pub fn new(secret: Secret, controller_secret: Option<Secret>) -> Credentials {
        Credentials { secret, controller_secret, strength: Strength::default() }
    }
}

/// Why a queue could not be authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAuthenticated {
    /// The target requires authentication, and there is no secret.
    #[error("it requires authentication; give the secret of this host (--dhchap-secret-file)")]
    NoSecret,
    /// The target requires secure channels.
    #[error("it requires secure channels, which this host does not support")]
    SecureChannel,
    /// The target requires no authentication, and was to prove itself.
    #[error(
        "it does not authenticate hosts, so it cannot prove that it is the right one; give it the secrets, or connect without"
    )]
    NotRequired,
    /// The target refuses the host.
    #[error("it refuses this host: {0}")]
    Refused(Reason),
    /// The target refuses the host for a reason that is not known.
    #[error("it refuses this host")]
    RefusedForUnknownReason,
    /// The host refuses the target.
    #[error("this host refuses it: {0}")]
    Refuses(Reason),
}

/// Authenticates a queue if the result of its Connect requires that. The target must have proved itself on the admin queue if it has to; that
/// of Linux authenticates no other queues.
pub(super) fn authenticate(
    queue: &Queue,
    number: u16,
    result: u64,
    host: &str,
    subsystem: &str,
    credentials: Option<&Credentials>,
) -> Result<(), Error> {
    if result & Connect::SECURE_CHANNEL_REQUIRED != 0 {
        return Err(NotAuthenticated::SecureChannel.into());
    }
    let is_required = result & Connect::AUTHENTICATION_REQUIRED != 0;
    let credentials = match (is_required, credentials) {
        (false, Some(Credentials { controller_secret: Some(_), .. })) if number == 0 => {
            return Err(NotAuthenticated::NotRequired.into());
        }
        (false, _) => return Ok(()),
        (true, None) => return Err(NotAuthenticated::NoSecret.into()),
        (true, Some(credentials)) => credentials,
    };
    prove(queue, host, subsystem, credentials)
}

/// Authenticates a queue.
pub(super) fn prove(queue: &Queue, host: &str, subsystem: &str, credentials: &Credentials) -> Result<(), Error> {
    let Credentials { secret, controller_secret, strength } = credentials.clone();
    let parties =
        &Parties { host: host.to_owned(), subsystem: subsystem.to_owned(), secret, controller_secret, strength };
    let mut transaction = [0; 2];
    fill(&mut transaction)?;
    let (mut challenge, mut exponent) = (Zeroizing::new([0; 64]), Zeroizing::new([0; _]));
    fill(&mut *challenge)?;
    fill(&mut *exponent)?;
    let draw = Draw { challenge, exponent };
    let (mut prover, mut step) = Prover::begin(parties, u16::from_le_bytes(transaction), draw);
    loop {
        let message = match step {
            Step::Exchange(message) => message,
            Step::Finish(message) => return send(queue, &message),
            Step::Done => return Ok(()),
        };
        send(queue, &message)?;
        let received = queue.execute(Carrier::receive(MESSAGE_BYTES_MAX), &[], MESSAGE_BYTES_MAX)?.success()?;
        step = prover.receive(&received.data).map_err(|refusal| match refusal {
            Refusal::ByController(Some(reason)) => NotAuthenticated::Refused(reason),
            Refusal::ByController(None) => NotAuthenticated::RefusedForUnknownReason,
            Refusal::ByHost(reason, message) => {
                if let Err(error) = send(queue, &message) {
                    tracing::debug!(%error, "the target could not be notified that it is refused");
                }
                NotAuthenticated::Refuses(reason)
            }
        })?;
    }
}

fn send(queue: &Queue, message: &[u8]) -> Result<(), Error> {
    queue.execute(Carrier::send(message.len()), message, 0)?.success().map(drop)
}

fn fill(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(|error| Error::Refused(format!("no random bytes of the system: {error}")))
}
