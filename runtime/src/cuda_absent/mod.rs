//! Stands for the driver side of CUDA in a build without it: types that have no value, so that the handles need no
//! second form and nothing of CUDA is linked.

mod types;

pub(crate) use types::{Place, Scratch, Weights, detect, held_memory};

use crate::activations::Tokens;
use crate::error::Error;
use crate::registry::{FormatInfo, PackInfo, Unit};
use crate::run::launch::Launcher;
use crate::weights::{PackedMatrix, QuantizedMatrix};

/// Code of GPUs that has no value, for a handle's `On`.
macro_rules! absent {
    ($($name:ident)*) => {$(
        #[derive(Clone, Debug)]
        pub(crate) enum $name {}

        impl $crate::run::launch::Launcher<$name> {
            pub(crate) fn cuda(
                _: &'static $crate::registry::Registry,
                candidate: $crate::decide::Candidate,
                place: &$crate::cuda::Place,
            ) -> Result<Self, $crate::error::Error> {
                Err($crate::run::launch::cannot_drive(candidate.entry, place.index()))
            }
        }
    )*};
}
pub(crate) use absent;

absent!(QuantizeCode DequantizeCode ActivationCode PrologueCode ProductCode);

impl Launcher<QuantizeCode> {
    pub(crate) fn tensor(
        &self,
        _: &FormatInfo,
        _: &[f32],
        _: usize,
        _: usize,
        _: &mut [u8],
    ) -> Result<(), Error> {
        match *self.code() {}
    }
}

impl Launcher<DequantizeCode> {
    pub(crate) fn tensor(&self, _: &QuantizedMatrix<'_>, _: Option<&mut [f32]>) -> Result<(), Error> {
        match *self.code() {}
    }
}

impl Launcher<ProductCode> {
    pub(crate) fn layout(&self) -> (Option<&'static PackInfo>, Unit) {
        match *self.code() {}
    }

    pub(crate) fn read_row(&self, _: &PackedMatrix, _: usize, _: &mut [u8]) -> Result<f32, Error> {
        match *self.code() {}
    }

    pub(crate) fn shares_device_with(&self, _: &Self) -> bool {
        match *self.code() {}
    }

    pub(crate) fn upload(&self, _: &mut PackedMatrix) -> Result<(), Error> {
        match *self.code() {}
    }

    pub(crate) fn run(
        &self,
        _: &PackedMatrix,
        _: Tokens<'_>,
        _: &mut [f32],
        _: Option<&Launcher<ActivationCode>>,
        _: &mut Option<Box<Scratch>>,
    ) -> Result<(), Error> {
        match *self.code() {}
    }

    pub(crate) fn unpack(
        &self,
        _: &PackInfo,
        _: &PackedMatrix,
        _: usize,
        _: &mut [f32],
    ) -> Result<(), Error> {
        match *self.code() {}
    }
}
