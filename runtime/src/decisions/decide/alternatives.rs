//! Kernels that may stand in for the chosen one without packing weights again.

use super::candidate::Candidate;
use super::prepared::Prepared;
use super::rules::fits;
use crate::request::Shape;
use crate::tuning::ShapeClass;
use gristmill_spec::vocab::{DeviceKind, Isa, Op};

impl Prepared {
    /// Products on the processor that read the packing of the kernel which is chosen for the fewest tokens of a class, and take some
    /// number of its tokens: that kernel first, the others in the order of decisions. The portable kernel is no alternative to others.
    pub(crate) fn alternatives(&self, class: ShapeClass, [n, k]: [usize; 2]) -> Vec<Candidate> {
        let (from, to) = class.tokens();
        let [few, many] = [from.max(1), to].map(|m| Shape { m, n, k });
        let decision = self.decide(few);
        let Some(chosen) = decision.chosen else { return Vec::new() };
        if self.op != Op::Matmul || self.device.kind != DeviceKind::Cpu || chosen.packing().is_none() {
            return Vec::new();
        }
        let may = |candidate: &&Candidate| {
            let rules = &candidate.entry.shape;
            candidate.index != chosen.index
                && candidate.packing() == chosen.packing()
                && candidate.entry.isa != Some(Isa::Scalar)
                && (fits(rules, few) || fits(rules, many))
        };
        std::iter::once(&chosen).chain(self.order_for(few).iter().filter(may)).copied().collect()
    }
}
