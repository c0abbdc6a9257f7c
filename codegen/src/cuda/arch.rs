//! GPU architectures as nvcc names them, and the words of `GRISTMILL_CUDA_ARCHS`.

use super::variables::ARCHS;
use gristmill_spec::vocab::CudaArch;
use std::str::FromStr;

/// An architecture without the suffix that ties it to one device.
pub(crate) const fn plain(major: u8, minor: u8) -> CudaArch {
    CudaArch { major, minor, specific: false }
}

/// As nvcc calls machine code: `sm_90a`.
pub fn sm(arch: CudaArch) -> String {
    format!("sm_{arch}")
}

/// As nvcc calls PTX: `compute_90a`.
pub fn compute(arch: CudaArch) -> String {
    format!("compute_{arch}")
}

/// A word that names no architecture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is no GPU architecture: {hint}")]
pub struct BadArch {
    /// The word.
    pub word: String,
    /// What was expected, or what was probably meant.
    pub hint: String,
}

/// Reads one word.
fn parse(word: &str) -> Result<CudaArch, BadArch> {
    if let Some(arch) = CudaArch::from_name(word) {
        return Ok(arch);
    }
    let prefixed = word.strip_prefix("sm_").or_else(|| word.strip_prefix("compute_"));
    let joined = word.split_once('.').map(|(major, minor)| format!("{major}{minor}"));
    let without_f = word.strip_suffix('f');
    let mut candidates = [prefixed, joined.as_deref(), without_f].into_iter().flatten();
    let hint = match candidates.find(|word| CudaArch::from_name(word).is_some()) {
        Some(meant) => format!("write `{meant}`"),
        None => "write numbers as in `75,80,90a`, or `all`, or `native`".to_string(),
    };
    Err(BadArch { word: word.to_string(), hint })
}

/// Which architectures images are wanted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Not said: those that the specs name.
    Default,
    /// These, ascending, each once.
    List(Vec<CudaArch>),
    /// All plain ones that the compiler knows.
    All,
    /// Those of the devices in this machine.
    Native,
}

/// What is wrong with the list of architectures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadWanted {
    /// A word of the list.
    #[error("{}={value}: {source}", ARCHS)]
    Word {
        /// The whole value.
        value: String,
        /// The word.
        source: BadArch,
    },
    /// `all` and `native` stand alone.
    #[error("{}={value}: `{word}` can't be combined with others", ARCHS)]
    NotAlone {
        /// The whole value.
        value: String,
        /// The word.
        word: String,
    },
    /// Commas and nothing else.
    #[error("{}={value} names no architecture; leave it unset for those of the specs", ARCHS)]
    Empty {
        /// The whole value.
        value: String,
    },
}

impl FromStr for Wanted {
    type Err = BadWanted;

    fn from_str(value: &str) -> Result<Wanted, BadWanted> {
        let words: Vec<&str> = value.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        match words[..] {
            [] => return Err(BadWanted::Empty { value: value.to_string() }),
            ["all"] => return Ok(Wanted::All),
            ["native"] => return Ok(Wanted::Native),
            _ => {}
        }
        let mut archs = Vec::with_capacity(words.len());
        for word in words {
            if word == "all" || word == "native" {
                return Err(BadWanted::NotAlone { value: value.to_string(), word: word.to_string() });
            }
            archs.push(parse(word).map_err(|source| BadWanted::Word { value: value.to_string(), source })?);
        }
        archs.sort_unstable();
        archs.dedup();
        Ok(Wanted::List(archs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(value: &str) -> Result<Wanted, String> {
        value.parse::<Wanted>().map_err(|error| error.to_string())
    }

    #[test]
    fn lists_are_sorted_and_each_is_there_once() {
        let exact = CudaArch { specific: true, ..plain(9, 0) };
        assert_eq!(
            wanted(" 90a, 75,80 ,75,90"),
            Ok(Wanted::List(vec![plain(7, 5), plain(8, 0), plain(9, 0), exact]))
        );
        assert_eq!(wanted("100"), Ok(Wanted::List(vec![plain(10, 0)])));
        assert_eq!(wanted("all"), Ok(Wanted::All));
        assert_eq!(wanted("native"), Ok(Wanted::Native));
        assert_eq!(sm(exact), "sm_90a");
        assert_eq!(compute(plain(12, 1)), "compute_121");
    }

    #[test]
    fn mistakes_say_what_was_meant() {
        let general = "write numbers as in `75,80,90a`, or `all`, or `native`";
        for (value, word, hint) in [
            ("7.5", "7.5", "write `75`"),
            ("75,sm_90a", "sm_90a", "write `90a`"),
            ("100f", "100f", "write `100`"),
            ("7", "7", general),
            ("+75", "+75", general),
            ("75;80", "75;80", general),
            ("ä", "ä", general),
        ] {
            assert_eq!(
                wanted(value).unwrap_err(),
                format!("GRISTMILL_CUDA_ARCHS={value}: `{word}` is no GPU architecture: {hint}")
            );
        }
        assert_eq!(
            wanted("all,75").unwrap_err(),
            "GRISTMILL_CUDA_ARCHS=all,75: `all` can't be combined with others"
        );
        assert_eq!(
            wanted(",").unwrap_err(),
            "GRISTMILL_CUDA_ARCHS=, names no architecture; leave it unset for those of the specs"
        );
    }
}
