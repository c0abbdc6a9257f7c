//! What follows from the names of a library: families, CUDA, the C++ library it was built with, processors.

use super::image::Image;
use crate::discover::{FileName, Role};
use crate::families::{Device, Evidence, Family, Job, cpu_feature, evidence};
use crate::symbols::{Group, is_c_name};
use std::path::Path;

/// Code for processors with certain features, told by the names of functions or of the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuVariant {
    /// The feature (`avx2`) or, from a file name, ggml's name of a processor (`haswell`).
    pub name: String,
    /// What shows it.
    pub shown_by: String,
}

/// What follows from the names that a library defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Names by group: defined, and only referred to.
    pub groups: Vec<(Group, usize, usize)>,
    /// Kernel families that it has.
    pub families: Vec<Evidence>,
    /// The CUDA backend: functions that it defines. Names it only refers to show nothing.
    pub cuda: Vec<String>,
    /// Code for certain processors.
    pub cpu_variants: Vec<CpuVariant>,
}

impl Facts {
    /// The facts of one image.
    pub fn of(image: &Image, path: &Path) -> Facts {
        let count = |group: Group| {
            let (defined, undefined) = image.count(group);
            (group, defined, undefined)
        };
        let is_cuda = |name: &&str| Group::Cuda.has(name);
        let mut cuda: Vec<String> = image.defined_names().filter(is_cuda).map(str::to_owned).collect();
        // Its API first: that is what a person knows.
        cuda.sort_by_key(|name| !is_c_name(name));
        Facts {
            groups: Group::ALL.into_iter().map(count).collect(),
            families: evidence(image.defined_names()),
            cuda,
            cpu_variants: variants(image, path),
        }
    }

    /// Whether it has a CUDA backend of its own.
    pub fn has_cuda(&self) -> bool {
        !self.cuda.is_empty()
    }

    /// Whether it computes products of a family on a device.
    pub fn computes(&self, family: Family, device: Device) -> bool {
        self.families.iter().any(|e| e.family == family && e.device == device && e.job == Job::Product)
    }

    /// Whether it computes products of a family anywhere.
    pub fn has(&self, family: Family) -> bool {
        self.families.iter().any(|e| e.family == family && e.job == Job::Product)
    }
}

fn variants(image: &Image, path: &Path) -> Vec<CpuVariant> {
    let mut found: Vec<CpuVariant> = Vec::new();
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    for stated in [Some(file.as_str()), image.soname.as_deref()].into_iter().flatten() {
        // ggml builds its CPU backend several times: libggml-cpu-haswell.so, ggml-cpu-zen4.dll.
        let Some(name) = FileName::parse(stated).filter(|name| name.role == Role::GgmlCpuVariant) else {
            continue;
        };
        let Some(variant) = name.stem.strip_prefix("ggml-cpu-") else { continue };
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if !variant.is_empty()
            && variant.chars().all(is_word)
            && found.iter().all(|known| known.name != variant)
        {
            found.push(CpuVariant { name: variant.to_owned(), shown_by: stated.to_owned() });
        }
    }
    for symbol in image.defined_names() {
        if let Some(feature) = cpu_feature(symbol)
            && found.iter().all(|known| known.name != feature)
        {
            found.push(CpuVariant { name: feature.to_owned(), shown_by: symbol.to_owned() });
        }
    }
    found.sort();
    found
}
