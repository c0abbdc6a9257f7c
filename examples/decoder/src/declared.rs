//! Metadata that changes what a model computes, and that this forward pass has no part for: a file with any of it is refused, as its
//! tokens would be those of another model.
//!
//! The rule: every key of the architecture (`llama.*` and so on) is known here, as one that [`Config`](crate::Config) reads, as one that
//! leaves the computation as it is, or with the values by which it does. A key that is not known is refused too, since nothing tells
//! whether it matters. The names are those of llama.cpp (`src/llama-arch.cpp`) and of the specification of GGUF.

use crate::error::Error;
use gristmill::gguf::{Gguf, Store, Value};

/// Keys that are read, or that say nothing about the computation of these architectures.
const FREE: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.type",
    // Of scalings that are refused by their type, and notes of how the model was trained.
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    // The embedding has as many rows as there are.
    "vocab_size",
];

/// Values by which a key changes nothing.
enum Neutral {
    /// One of these numbers.
    Numbers(&'static [f64]),
    /// This truth value.
    Flag(bool),
    /// What attention computes anyway, the root of the elements of a head below 1, or 0 for that.
    AttentionScale,
    /// How rows of queries and keys are ordered. Converters to `llama` order them for rotations of neighbours, as Meta's own files are,
    /// and say so.
    Layout,
}

/// Keys that change the computation, but for some values.
const NEUTRAL: &[(&str, Neutral)] = &[
    ("attention.causal", Neutral::Flag(true)),
    ("attention.clamp_kqv", Neutral::Numbers(&[0.0])),
    ("attention.max_alibi_bias", Neutral::Numbers(&[0.0])),
    ("attention.scale", Neutral::AttentionScale),
    ("attn_logit_softcapping", Neutral::Numbers(&[0.0])),
    ("embedding_scale", Neutral::Numbers(&[0.0, 1.0])),
    // 1 is softmax over all experts.
    ("expert_gating_func", Neutral::Numbers(&[1.0])),
    ("expert_group_count", Neutral::Numbers(&[0.0, 1.0])),
    ("expert_group_used_count", Neutral::Numbers(&[0.0, 1.0])),
    ("expert_shared_count", Neutral::Numbers(&[0.0])),
    ("expert_shared_feed_forward_length", Neutral::Numbers(&[0.0])),
    ("expert_weights_norm", Neutral::Flag(true)),
    ("expert_weights_scale", Neutral::Numbers(&[0.0, 1.0])),
    ("final_logit_softcapping", Neutral::Numbers(&[0.0])),
    ("leading_dense_block_count", Neutral::Numbers(&[0.0])),
    ("logit_scale", Neutral::Numbers(&[0.0, 1.0])),
    ("nextn_predict_layers", Neutral::Numbers(&[0.0])),
    ("pooling_type", Neutral::Numbers(&[0.0])),
    ("residual_scale", Neutral::Numbers(&[0.0, 1.0])),
    ("rope.scaling.attn_factor", Neutral::Numbers(&[1.0])),
    ("rope.scaling.yarn_attn_factor", Neutral::Numbers(&[1.0])),
    ("rope.scaling.yarn_ext_factor", Neutral::Numbers(&[0.0])),
    ("rope.scaling.yarn_log_multiplier", Neutral::Numbers(&[0.0])),
    ("router_logit_softcapping", Neutral::Numbers(&[0.0])),
    ("tensor_data_layout", Neutral::Layout),
    ("use_parallel_residual", Neutral::Flag(false)),
];

impl Neutral {
    /// Whether `value` is one of them, in `architecture` with heads of `head` elements.
    fn is(&self, value: &Value<'_>, architecture: &str, head: usize) -> bool {
        let number = value.as_f64().or_else(|| value.as_u64().map(|number| number as f64));
        match self {
            Neutral::Numbers(numbers) => number.is_some_and(|number| numbers.contains(&number)),
            Neutral::Flag(flag) => value.as_bool() == Some(*flag),
            Neutral::AttentionScale => {
                number.is_some_and(|scale| scale == 0.0 || (scale * (head as f64).sqrt() - 1.0).abs() < 1e-6)
            }
            Neutral::Layout => match value.as_str() {
                Some("reference") => true,
                Some("Meta AI original pth") => architecture == "llama",
                _ => false,
            },
        }
    }

    /// What was expected, for a message.
    fn expected(&self, head: usize) -> String {
        match self {
            Neutral::Numbers(numbers) => numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(" or "),
            Neutral::Flag(flag) => flag.to_string(),
            Neutral::AttentionScale => format!("0 or {}", 1.0 / (head as f64).sqrt()),
            Neutral::Layout => "`reference`".to_owned(),
        }
    }
}

/// Refuses what `file` declares of its model and the forward pass of `architecture`, with heads of `head` elements, does not do.
///
/// # Errors
/// [`Error::Metadata`], which names the first of it.
pub fn check<B: Store>(file: &Gguf<B>, architecture: &'static str, head: usize) -> Result<(), Error> {
    let wrong = |key: &str, why: String| Err(Error::Metadata { key: key.to_owned(), why });
    for (key, value) in file.metadata() {
        match key {
            "general.type" if value.as_str() != Some("model") => {
                return wrong(key, format!("{}: this decoder runs files of type \"model\"", shown(&value)));
            }
            "split.count" if value.as_u64().is_none_or(|count| count > 1) => {
                let help = "join the parts to one file (`llama-gguf-split --merge`)";
                return wrong(
                    key,
                    format!("{}: the file is a part of a model\n  help: {help}", shown(&value)),
                );
            }
            _ => {}
        }
        // Hadamard transforms were understood, or opening the file would have failed. What else stands there may change the model too.
        if key.starts_with("prism.") && !key.starts_with("prism.hadamard.") {
            let why = "a declaration that this decoder does not know, by a publisher whose declarations change what weights mean";
            return wrong(key, why.to_owned());
        }
        let Some(own) = key.strip_prefix(architecture).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        if FREE.contains(&own) {
            continue;
        }
        match NEUTRAL.iter().find(|(known, _)| *known == own) {
            Some((_, neutral)) if neutral.is(&value, architecture, head) => {}
            Some((_, neutral)) => {
                let expected = neutral.expected(head);
                return wrong(
                    key,
                    format!(
                        "{}: this decoder has no part for it, and would compute another model (it runs files with {expected})",
                        shown(&value)
                    ),
                );
            }
            None => {
                return wrong(
                    key,
                    format!(
                        "this decoder does not know the key, which may change what the model computes (its value: {})",
                        shown(&value)
                    ),
                );
            }
        }
    }
    Ok(())
}

/// A value as a message shows it.
pub(crate) fn shown(value: &Value<'_>) -> String {
    /// Characters of a text.
    const MOST: usize = 60;
    match value {
        Value::String(text) if text.chars().count() > MOST => {
            format!("\"{}...\"", text.chars().take(MOST).collect::<String>())
        }
        Value::String(text) => format!("\"{text}\""),
        Value::Array(_) => "a list".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::U8(number) => number.to_string(),
        Value::U16(number) => number.to_string(),
        Value::U32(number) => number.to_string(),
        Value::U64(number) => number.to_string(),
        Value::I8(number) => number.to_string(),
        Value::I16(number) => number.to_string(),
        Value::I32(number) => number.to_string(),
        Value::I64(number) => number.to_string(),
        Value::F32(number) => number.to_string(),
        Value::F64(number) => number.to_string(),
    }
}
