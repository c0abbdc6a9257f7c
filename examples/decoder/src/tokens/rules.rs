//! How a text is cut into words before byte pairs are merged, by `tokenizer.ggml.pre`. The names, and what goes with them, are those of
//! llama.cpp (`src/llama-vocab.cpp`); the expressions are those of the models' own tokenizers, of which llama.cpp's are adaptions.

use crate::error::Error;
use serde_json::{Value as Json, json};

/// What files of some names have in common.
#[derive(Debug)]
pub(super) struct Rules {
    names: &'static [&'static str],
    /// Applied one after the other, each to what the former ones left whole and to what they cut out.
    expressions: &'static [&'static str],
    /// Whether a word that is a token is that token, whatever merges reach.
    pub(super) ignore_merges: bool,
    /// Whether a text begins with the token for that, where the file does not say.
    pub(super) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Every set of rules; the last one is that of files that name none.
const RULES: &[Rules] = &[
    // Llama 3 has whole words that its merges do not reach.
    Rules {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        expressions: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: true,
        add_bos: true,
    },
    Rules {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
        ],
        expressions: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    Rules {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "granite-docling",
        ],
        expressions: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Rules {
        names: &["default"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
];

impl Rules {
    /// Those called `pre`, or those of a file that names none.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]: there are none of this name.
    pub(super) fn named(pre: Option<&str>) -> Result<&'static Rules, Error> {
        let pre = pre.unwrap_or("default");
        RULES.iter().find(|rules| rules.names.contains(&pre)).ok_or_else(|| {
            let known: Vec<&str> = RULES.iter().flat_map(|rules| rules.names).copied().collect();
            Error::Tokenizer(format!(
                "how `{pre}` (`tokenizer.ggml.pre`) cuts a text into words is not known here: known are {}",
                known.join(", ")
            ))
        })
    }

    /// The steps of `tokenizer.json` that cut a text.
    pub(super) fn steps(&self) -> impl Iterator<Item = Json> {
        let step = |expression: &&str| {
            let pattern = json!({"Regex": expression});
            json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
        };
        self.expressions.iter().map(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

    fn words(pre: Option<&str>, text: &str) -> Vec<String> {
        let steps: Vec<Json> = Rules::named(pre).unwrap().steps().collect();
        let steps = json!({"type": "Sequence", "pretokenizers": steps});
        let steps: PreTokenizerWrapper = serde_json::from_value(steps).unwrap();
        let mut text = PreTokenizedString::from(text);
        steps.pre_tokenize(&mut text).unwrap();
        let words = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        words.into_iter().map(|(word, _, _)| word.to_owned()).collect()
    }

    #[test]
    fn each_set_of_rules_cuts_as_it_should() {
        const TEXT: &str = "It's 12345 a_b!\n  end";
        let llama3 = ["It", "'s", " ", "123", "45", " a", "_b", "!\n", " ", " end"];
        let qwen2 = ["It", "'s", " ", "1", "2", "3", "4", "5", " a", "_b", "!\n", " ", " end"];
        let gpt2 = ["It", "'s", " 12345", " a", "_", "b", "!", "\n ", " end"];
        // Punctuation comes first, so there is no "'s"; digits are cut from the space before them, and then in threes.
        let default = ["It", "'", "s", " ", "123", "45", " a", "_", "b", "!", "\n ", " end"];
        for (names, expected) in [
            (&["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"][..], &llama3[..]),
            (&["qwen2", "deepseek-r1-qwen", "kormo"], &qwen2),
            (&["gpt-2"], &gpt2),
            (&["default"], &default),
        ] {
            for name in names {
                assert_eq!(words(Some(name), TEXT), expected, "{name}");
            }
        }
        assert_eq!(words(None, TEXT), default);
    }

    #[test]
    fn a_name_is_of_one_set_of_rules() {
        let mut names: Vec<&str> = RULES.iter().flat_map(|rules| rules.names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let error = Rules::named(Some("tekken")).unwrap_err().to_string();
        assert!(
            error.contains("`tekken`") && error.contains("falcon3") && error.contains("default"),
            "{error}"
        );
        let falcon3 = Rules::named(Some("falcon3")).unwrap();
        assert!(falcon3.ignore_merges && falcon3.add_bos);
        let kormo = Rules::named(Some("kormo")).unwrap();
        assert!(!kormo.ignore_merges && !kormo.add_bos);
    }
}
