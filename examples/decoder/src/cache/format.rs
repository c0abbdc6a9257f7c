//! What the cache can hold keys and values as.

use crate::config::Config;
use crate::error::Error;
use clap::ValueEnum;
use clap::builder::PossibleValue;

/// Positions of a block of the cache.
pub const BLOCK: usize = 32;

/// Elements of a head that share a scale in `q8_0`.
pub const GROUP: usize = 32;

/// How keys and values are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheFormat {
    /// binary16.
    #[default]
    F16,
    /// Integers of 8 bits in groups of [`GROUP`] elements of a head, each group with a scale of binary16: the format `q8_0` of
    /// gristmill, in 34/64 of the memory of f16.
    Q8_0,
}

impl CacheFormat {
    /// Every one.
    pub const ALL: [CacheFormat; 2] = [CacheFormat::F16, CacheFormat::Q8_0];

    /// Its name; `q8_0` is the name of the format in the registry too.
    pub fn name(self) -> &'static str {
        match self {
            CacheFormat::F16 => "f16",
            CacheFormat::Q8_0 => "q8_0",
        }
    }

    /// Whether heads of the model can be held so.
    ///
    /// # Errors
    /// [`Error::CacheFormat`].
    pub fn check(self, config: &Config) -> Result<(), Error> {
        if self == CacheFormat::Q8_0 && !config.head.is_multiple_of(GROUP) {
            return Err(Error::CacheFormat { format: self.name(), group: GROUP, head: config.head });
        }
        Ok(())
    }
}

impl ValueEnum for CacheFormat {
    fn value_variants<'a>() -> &'a [CacheFormat] {
        &CacheFormat::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}
