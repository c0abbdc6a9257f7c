//! Tables that contradict themselves: what can be seen in them without knowing the code they describe.
//!
//! [`contradiction`](EntryFacts) of each kind of facts runs while a registry is compiled, so that one which is wrong is no
//! program. What takes a call of `candidates`, or a search for names, is left to [`Registry::check`], for tests.

use super::vouched::{Code, CudaCode, CudaLaunch, EntryFacts, FormatFacts, PackFacts, RegistryFacts};
use super::{ActivationInfo, CudaRowsQuantizer, CudaStep, DimRule, ImportInfo, Registry, WithoutImage};
use crate::error::Error;
use gristmill_spec::vocab::{DType, DeviceKind, Op, Serves};
use std::collections::BTreeSet;

/// Threads of a CUDA block, at most, on every device.
const MOST_THREADS: u32 = 1024;

const fn is_block(threads: u32) -> bool {
    threads > 0 && threads <= MOST_THREADS
}

impl CudaLaunch {
    /// Whether each launch has threads, and each thread or block something to do.
    const fn is_launch(&self) -> bool {
        match *self {
            CudaLaunch::Elements { threads, per_thread, .. }
            | CudaLaunch::Convert { threads, per_thread, .. } => is_block(threads) && per_thread > 0,
            CudaLaunch::Quantize { threads, blocks, step, .. } => {
                is_block(threads)
                    && blocks > 0
                    && match step {
                        Some(CudaStep { threads, chunk, .. }) => is_block(threads) && chunk > 0,
                        None => true,
                    }
            }
            CudaLaunch::Activations { threads, .. } | CudaLaunch::Experts { threads, .. } => {
                is_block(threads)
            }
            CudaLaunch::Matmul { threads, fewest, rows, tokens, unit, .. } => {
                is_block(threads)
                    && fewest > 0
                    && fewest <= threads
                    && rows > 0
                    && tokens > 0
                    && unit.multiple > 0
            }
            CudaLaunch::Rows { threads, fewest, rows, tokens, check_threads, quantizer, .. } => {
                is_block(threads)
                    && is_block(check_threads)
                    && fewest > 0
                    && fewest <= threads
                    && rows > 0
                    && tokens > 0
                    && match quantizer {
                        Some(CudaRowsQuantizer { threads, elements, bytes, .. }) => {
                            is_block(threads) && elements > 0 && bytes > 0
                        }
                        None => true,
                    }
            }
        }
    }
}

impl DimRule {
    const fn can_hold(&self) -> bool {
        self.min <= self.max && self.multiple_of > 0
    }
}

impl EntryFacts {
    /// What of this can't be true together.
    pub(super) const fn contradiction(&self) -> Option<&'static str> {
        if self.name.is_empty() {
            return Some("a kernel has no name");
        }
        match &self.code {
            Code::Matmul { unit, .. } if unit.multiple == 0 => {
                return Some("a unit of activations is empty");
            }
            Code::Cuda(CudaCode { launch, .. }) if !launch.is_launch() => {
                return Some("a launch has no threads, or nothing for them to do");
            }
            _ => {}
        }
        let Some(op) = self.code.op() else { return Some("the code of a kernel is a conversion") };
        if op as u8 != self.op as u8 {
            return Some("the code of a kernel is of another op");
        }
        match (self.device, &self.code, self.isa) {
            (DeviceKind::Cuda, Code::Cuda(_), None) => {}
            (DeviceKind::Cpu, Code::Cuda(_), _) => return Some("the code of a kernel is for another device"),
            (DeviceKind::Cpu, _, Some(_)) => {}
            (DeviceKind::Cpu, _, None) => return Some("a kernel of the processor has no ISA"),
            (DeviceKind::Cuda | DeviceKind::Rocm | DeviceKind::Metal, _, _) => {
                return Some("the code of a kernel is for another device");
            }
        }
        if !(self.shape.m.can_hold() && self.shape.n.can_hold() && self.shape.k.can_hold()) {
            return Some("no shape keeps the rules of a kernel");
        }
        None
    }
}

impl FormatFacts {
    /// What of this can't be true together.
    pub(super) const fn contradiction(&self) -> Option<&'static str> {
        if self.name.is_empty() {
            return Some("a format has no name");
        }
        if self.elements == 0 || self.bytes == 0 {
            return Some("a block is empty");
        }
        if self.row_header.is_some() && self.tensor_tail.is_some() {
            return Some("a format has both a row header and a tensor tail");
        }
        match self.tensor_tail {
            Some((outer, bytes)) if bytes < outer.bytes() => {
                Some("the tail of a format is shorter than its scale")
            }
            Some(_) | None => None,
        }
    }
}

impl PackFacts {
    /// What of this can't be true together.
    pub(super) const fn contradiction(&self) -> Option<&'static str> {
        if self.name.is_empty() {
            return Some("a packing has no name");
        }
        if self.rows == 0 || self.tile_k == 0 || self.tile_bytes == 0 || self.runs == 0 || self.span == 0 {
            return Some("a panel, a tile or a super-block is empty");
        }
        if self.runs > 1 && self.span > 1 {
            return Some("units share a scale in two ways");
        }
        if !matches!(self.scale_bytes, 0 | 1 | 2 | 4) || !matches!(self.min_bytes, 0 | 1 | 2 | 4) {
            return Some("a packed scale or minimum term is not 1, 2 or 4 bytes wide");
        }
        if !(self.rows * self.scale_bytes).is_multiple_of(4)
            || !(self.rows * self.min_bytes).is_multiple_of(4)
        {
            return Some("scales of the rows of a panel do not fill words");
        }
        if !matches!(self.scale_integer_bits, 4 | 8)
            || !matches!(self.min_integer_bits, 4 | 8)
            || !matches!(self.flag_bits, 0 | 8 | 32)
        {
            return Some("integers of a super-block are not 4 or 8 bits wide, or its flags not 8 or 32");
        }
        let plain = self.scale_integer_bits == 8 && self.min_integer_bits == 8 && self.flag_bits == 0;
        if self.runs == 1 && !plain {
            return Some("integers in nibbles or flags belong to no super-block");
        }
        if self.flag_bits > 0 && self.scale_bytes == 0 {
            return Some("flags stand behind scales that there are none of");
        }
        if (self.scale_integer_bits == 4 || self.min_integer_bits == 4) && !self.rows.is_power_of_two() {
            return Some("the rows of a panel have no two halves that share bytes");
        }
        if self.runs > 1
            && (!(self.runs * self.rows * self.scale_integer_bits).is_multiple_of(32)
                || !(self.runs * self.rows * self.min_integer_bits).is_multiple_of(32)
                || !(self.rows * self.flag_bits).is_multiple_of(32))
        {
            return Some("integers and flags of a super-block do not fill words");
        }
        None
    }
}

impl RegistryFacts {
    /// What of this can't be true together.
    pub(super) const fn contradiction(&self) -> Option<&'static str> {
        if self.entries.len() > 1 << u16::BITS {
            return Some("there are more kernels than lists of candidates can name");
        }
        let (formats, activations) = (self.formats.len(), self.activations.len());
        let mut at = 0;
        while at < formats {
            if self.formats[at].facts().activations >= activations {
                return Some("a format has no activation format");
            }
            at += 1;
        }
        at = 0;
        while at < activations {
            if let ActivationInfo { block: Some(0), .. } = self.activations[at] {
                return Some("a block of activations is empty");
            }
            at += 1;
        }
        at = 0;
        while at < self.entries.len() {
            let entry = self.entries[at].facts();
            if entry.format >= count(entry.op, formats, activations) {
                return Some("a kernel is of no format");
            }
            if entry.op.info().by_prologue && self.activations[entry.format].prologue.is_empty() {
                return Some("a kernel is of a prologue that its format has not");
            }
            if entry.op.info().by_quantizer {
                let format = self.formats[entry.format].facts();
                if entry.quantizer >= format.quantizers.len() {
                    return Some("a kernel is of no quantizer of its format");
                }
                let outside = format.row_header.is_some() || format.tensor_tail.is_some();
                if entry.code.has_step() && !outside {
                    return Some("a kernel computes a scale that its format has no place for");
                }
            }
            at += 1;
        }
        at = 0;
        while at < self.without_image.len() {
            let WithoutImage { op, format, .. } = self.without_image[at];
            if format >= count(op, formats, activations) {
                return Some("a kernel without an image is of no format");
            }
            at += 1;
        }
        at = 0;
        while at < self.imports.len() {
            let ImportInfo { format, rows, moves, .. } = self.imports[at];
            if format >= formats {
                return Some("an import layout is of no format");
            }
            let bits = (8 * self.formats[format].facts().bytes) as u64;
            let mut each = 0;
            while each < moves.len() {
                let one = moves[each];
                let ends = (one.from as u64 + one.bits as u64, one.to as u64 + one.bits as u64);
                let inside = ends.0 <= bits * rows as u64 && ends.1 <= bits && (one.row as usize) < rows;
                if one.bits == 0 || one.bits > 32 || !inside {
                    return Some("an import layout moves bits from or to outside of a block");
                }
                each += 1;
            }
            at += 1;
        }
        match self.convert {
            Some(CudaCode { launch: CudaLaunch::Convert { .. }, .. }) | None => {}
            Some(_) => return Some("what converts is no conversion"),
        }
        match self.experts {
            Some(CudaCode { launch: CudaLaunch::Experts { .. }, .. }) | None => None,
            Some(_) => Some("what experts need is something else"),
        }
    }
}

/// How many formats there are of the kind that an op's kernels are numbered by.
const fn count(op: Op, formats: usize, activations: usize) -> usize {
    match op.info().serves {
        Serves::Activations => activations,
        Serves::Formats => formats,
    }
}

impl Code {
    /// Whether it computes a scale of more than a block.
    const fn has_step(&self) -> bool {
        matches!(
            self,
            Code::Quantize { step: Some(_), .. }
                | Code::Cuda(CudaCode { launch: CudaLaunch::Quantize { step: Some(_), .. }, .. })
        )
    }
}

/// A name or an identity that occurs for the second time.
fn twice<T: Ord>(all: impl IntoIterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    all.into_iter().any(|one| !seen.insert(one))
}

impl Registry {
    /// Whether the tables agree, as far as calls of `candidates` and comparing names can tell; the rest was looked at when the
    /// registry was compiled. For tests of registries: nothing depends on having asked.
    ///
    /// # Errors
    /// [`Error::BrokenRegistry`] with the first contradiction.
    pub fn check(&'static self) -> Result<(), Error> {
        let broken = |at, what| Err(Error::BrokenRegistry { package: self.package, at, what });
        if twice(self.formats.iter().map(|format| format.name)) {
            return broken("formats", "two formats have one name");
        }
        if twice(self.activations.iter().map(|format| format.name)) {
            return broken("activations", "two activation formats have one name");
        }
        if twice(self.imports.iter().map(|import| import.name)) {
            return broken("imports", "two import layouts have one name");
        }
        if twice(self.entries.iter().map(|entry| entry.name)) {
            return broken("entries", "two kernels have one name");
        }
        if twice(self.entries.iter().map(|entry| entry.id)) {
            return broken("entries", "two kernels have one identity");
        }
        if let Some(held) =
            self.left_out.iter().find(|left_out| self.formats.iter().any(|f| f.name == left_out.format))
        {
            return broken(held.format, "it is left out of the build and in it");
        }
        let mut listed = vec![false; self.entries.len()];
        for &op in Op::ALL {
            // One more than there are: what is asked of a format that is not there gets no kernel.
            let formats = count(op, self.formats.len(), self.activations.len()) + 1;
            for (format, dtype) in (0..formats).flat_map(|f| DType::ALL.iter().map(move |dtype| (f, *dtype)))
            {
                for &device in DeviceKind::ALL {
                    let candidates = self.listed(op, format, dtype, device);
                    if twice(candidates) {
                        return broken("candidates", "a kernel stands twice in a list");
                    }
                    for index in candidates {
                        let Some(entry) = self.entries.get(usize::from(*index)) else {
                            return broken("candidates", "a list names a kernel that is not there");
                        };
                        if (entry.op, entry.format, entry.device) != (op, format, device) {
                            return broken(entry.name, "it is a candidate for what it does not serve");
                        }
                        listed[usize::from(*index)] = true;
                    }
                }
            }
        }
        match self.entries.iter().zip(listed).find(|(_, listed)| !listed) {
            Some((entry, _)) => broken(entry.name, "nothing has it as a candidate"),
            None => Ok(()),
        }
    }
}
