//! What things are called in generated code, where the compiler makes that of the names in specs. Different names may
//! become one there, which the checks refuse.

use super::{CpuVariant, CudaVariant, Kernel};

/// The enumerator of a format: `i2_s` to `I2S`, `iq4_nl` to `Iq4Nl`.
pub fn enumerator(name: &str) -> String {
    name.split('_')
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
        })
        .collect()
}

/// The module of an activation format; that of a weight format has its name.
pub fn activations_module(name: &str) -> String {
    format!("activations_{name}")
}

/// The function of a quantizer: that of a variant has the variant's identifier behind it.
pub fn quantizer_function(name: &str) -> String {
    format!("quantize_{name}")
}

impl CpuVariant {
    /// Facts in order: the ISA, what it requires beyond that, its name.
    pub fn words(&self) -> Vec<&str> {
        let mut words = vec![self.isa.name()];
        words.extend(self.requires.iter().map(|f| f.name()));
        if !self.label.is_empty() {
            words.push(&self.label);
        }
        words
    }

    /// The end of its functions' and modules' names: `avx512_avx512vnni_decode`.
    pub fn ident(&self) -> String {
        self.words().join("_").replace(['.', '-'], "")
    }
}

impl CudaVariant {
    /// The translation unit of one of its functions for a format: what is generated has one for each op, format and label; what is
    /// written by hand, one for each variant of `kernel`.
    pub fn unit(&self, function: &str, format: &str, kernel: &Kernel) -> String {
        let mut name = format!("{function}_{format}");
        if !self.label.is_empty() {
            name = format!("{name}_{}", self.label);
        }
        match &self.body {
            Some(body) => format!("{name}_{}_{}", kernel.name, body.function),
            None => name,
        }
    }
}
