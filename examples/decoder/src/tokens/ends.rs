//! Which tokens end a text.

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
    // What somebody may write is a text; where the file does not tell what its tokens are, the text alone counts.
    let may_end =
        |id: usize| listed.kinds.is_none() || matches!(listed.kind(id), Kind::Control | Kind::UserDefined);
    let named =
        (0..).zip(&listed.tokens).filter(|(id, token)| TEXTS.contains(token) && may_end(*id as usize));
    ends.extend(named.map(|(id, _): (u32, _)| id));
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}
