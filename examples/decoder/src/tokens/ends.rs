//! Which tokens end a text, and which are control tokens by what they are called.

use super::keys::{Keys, Kind, Listed};
use crate::error::Error;

/// Keys of tokens that do, as far as files have them.
const KEYS: [&str; 6] = [
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "fim_pad_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
];

/// Texts of tokens that do, as files leave keys out: those of llama.cpp (`special_eog_ids` in `src/llama-vocab.cpp`), but for those of
/// vocabularies that are not read here. Models end a turn by another token than a text, and those that fill gaps go on with another file.
const TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    // Padding, the name of a repository, and what stands between files.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Texts of tokens that say what stands before and behind a gap, and where the model fills it. They end nothing.
const GAPS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
    "<PRE>",
    "\u{2581}<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
    "<SUF>",
    "\u{2581}<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
    "<MID>",
    "\u{2581}<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// Makes control tokens of all that are such by their text, whatever the file says of them, as llama.cpp does: a model writes them to
/// end a turn, and was never trained on their letters. Gives their texts, where the file says otherwise.
pub(super) fn retype<'a>(listed: &mut Listed<'a>) -> Vec<&'a str> {
    let mut retyped = Vec::new();
    for (token, kind) in listed.tokens.iter().zip(&mut listed.kinds) {
        if *kind != Kind::Control && (TEXTS.contains(token) || GAPS.contains(token)) {
            *kind = Kind::Control;
            // A file may repeat a token.
            if !retyped.contains(token) {
                retyped.push(*token);
            }
        }
    }
    retyped
}

/// Every token that ends a text; `eos` is the one where no key says it.
///
/// # Errors
/// A key that names no token.
pub(super) fn of(keys: &Keys<'_>, listed: &Listed<'_>, eos: Option<u32>) -> Result<Vec<u32>, Error> {
    let count = listed.tokens.len();
    let mut ends: Vec<u32> = eos.into_iter().collect();
    for key in KEYS {
        ends.extend(keys.token(key, count)?);
    }
    let named = (0..).zip(&listed.tokens).filter(|(_, token)| TEXTS.contains(token));
    ends.extend(named.map(|(id, _): (u32, _)| id));
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}
