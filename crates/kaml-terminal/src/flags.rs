//! Flags that several programs have.

use clap::ValueEnum;

/// What an acknowledged put survives.
#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Durability {
    /// Power loss
    #[default]
    Power,
    /// The death of the process, but not power loss; much faster
    Process,
}

impl From<Durability> for kaml::Durability {
    fn from(durability: Durability) -> kaml::Durability {
        match durability {
            Durability::Power => kaml::Durability::Power,
            Durability::Process => kaml::Durability::Process,
        }
    }
}
