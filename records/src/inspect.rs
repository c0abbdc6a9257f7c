//! What `gristmill inspect --json` prints of a file, and the transform that `plan` and `inspect` say that a file declares.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// Its tensors.
    pub tensors: Vec<Tensor>,
    /// Its metadata by key; null for safetensors.
    pub metadata: Option<BTreeMap<String, Metadata>>,
    /// The transform of activations that it declares; null for safetensors.
    pub transform: Option<Transform>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name.
    pub tensor: String,
    /// Its type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its sizes, outermost first.
    pub shape: Vec<u64>,
    /// Its size, where that is known.
    pub bytes: Option<u64>,
    /// The number of its type; null for safetensors.
    pub type_number: Option<u32>,
    /// What decided between the types of the number; null where the number alone says the type.
    pub type_decided_by: Option<String>,
    /// Why it is not known how many bytes the tensor has.
    pub unknown: Option<String>,
}

/// A value of metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Metadata {
    /// Text.
    Text(String),
    /// Yes or no.
    Bool(bool),
    /// An integer that is not negative.
    Unsigned(u64),
    /// An integer.
    Signed(i64),
    /// A number; null where it is not finite.
    Float(Option<f64>),
    /// The beginning of an array.
    Array(MetadataArray),
}

/// The beginning of an array of metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetadataArray {
    /// The type of its elements.
    pub of: String,
    /// How many it has.
    pub length: u64,
    /// The first of them.
    pub first: Vec<Metadata>,
}

/// A transform of activations that a file declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transform {
    /// Which.
    pub kind: String,
    /// Whether this version can do it.
    pub understood: bool,
    /// What it is, or which key is not understood.
    #[serde(flatten)]
    pub what: Declaration,
}

/// What a file says of a transform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Declaration {
    /// It is understood.
    Understood {
        /// Elements that are transformed together.
        block: u64,
        /// Whether signs are applied besides.
        signed: bool,
        /// Tensors whose products take transformed activations.
        products: u64,
        /// Tensors whose rows are stored transformed.
        stored_rows: u64,
    },
    /// It is not.
    Refused {
        /// The key.
        key: String,
        /// What is wrong with its value.
        why: String,
    },
}
