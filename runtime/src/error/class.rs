//! What kind of error it is, for languages and engines that tell few of them apart.

use super::Error;

/// A kind of errors, by what the caller can do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Nothing is called that: a format, a quantizer, a kernel, a packing, a device.
    Name,
    /// No kernel of this build does it here; the message has the reasons.
    NoKernel,
    /// Lengths and shapes contradict each other, or a shape is impossible.
    Shape,
    /// The values are the error: not finite, too large for the format, or codes that mean nothing.
    Data,
    /// Memory has run out, of the system or of a device.
    Memory,
    /// Threads could not be started, or kept on their processors.
    Threads,
    /// A device, or what goes between devices, reports an error.
    Device,
    /// Something was asked for that can't be, with what it was given: operands of another kernel, an option that the device lacks.
    Request,
    /// A file can't be read, or what stands in it is wrong. No [`Error`] is of this kind; errors of files are.
    File,
    /// An error in gristmill, or a machine that computes wrong.
    Internal,
}

impl Error {
    /// What kind of error it is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::UnknownFormat { .. }
            | Error::UnknownImport { .. }
            | Error::UnknownKernel { .. }
            | Error::UnknownPacking { .. }
            | Error::UnknownWord { .. }
            | Error::UnknownDevice { .. } => ErrorClass::Name,
            Error::NoKernel(refusal) if refusal.is_of_a_name() => ErrorClass::Name,
            Error::NotCompiled { .. }
            | Error::NoKernel(_)
            | Error::CannotRunHere { .. }
            | Error::CannotDrive { .. }
            | Error::NoGpu { .. }
            | Error::CannotRunOnGpu { .. } => ErrorClass::NoKernel,
            Error::ShapeRule { .. }
            | Error::KNotMultiple { .. }
            | Error::ShapeMismatch { .. }
            | Error::StrideTooSmall { .. }
            | Error::RowsNotMultiple { .. }
            | Error::RowRange { .. }
            | Error::NoSuchRow { .. }
            | Error::RowIndexOutOfRange { .. }
            | Error::NoSuchExpert { .. }
            | Error::DuplicateExpert { .. }
            | Error::ExpertLists { .. }
            | Error::TooLarge { .. } => ErrorClass::Shape,
            Error::InvalidCode { .. }
            | Error::Importance { .. }
            | Error::NonFinite { .. }
            | Error::NonFiniteScale { .. }
            | Error::NonFiniteWeight { .. }
            | Error::ScaleOverflow { .. }
            | Error::BeyondPrecision { .. } => ErrorClass::Data,
            Error::OutOfMemory { .. } | Error::OutOfDeviceMemory { .. } => ErrorClass::Memory,
            Error::TooManyThreads { .. }
            | Error::Threads { .. }
            | Error::Processor { .. }
            | Error::NodeProcessors { .. } => ErrorClass::Threads,
            #[cfg(feature = "cuda")]
            Error::Gpu(_) | Error::Capturing { .. } => ErrorClass::Device,
            #[cfg(feature = "nccl")]
            Error::Nccl { .. } => ErrorClass::Device,
            #[cfg(feature = "cuda")]
            Error::OtherGpu { .. } | Error::Lent { .. } | Error::Overlap { .. } => ErrorClass::Request,
            Error::Environment { .. }
            | Error::Quarantine { .. }
            | Error::WrongOp { .. }
            | Error::NoImportance { .. }
            | Error::NotQuantized { .. }
            | Error::ProductOption { .. }
            | Error::WrongFormat { .. }
            | Error::WrongPacking { .. }
            | Error::WrongInput { .. }
            | Error::WorkspaceTooSmall { .. }
            | Error::Division { .. }
            | Error::MixedFormats { .. }
            | Error::NothingStacked
            | Error::ActivationLayout { .. }
            | Error::ProcessorOnly { .. }
            | Error::WrongDevice { .. }
            | Error::Hadamard { .. }
            | Error::Prologue { .. }
            | Error::SecondObserver
            | Error::ForeignRecording { .. }
            | Error::Joined(_) => ErrorClass::Request,
            Error::KernelFailed { .. } | Error::BrokenRegistry { .. } => ErrorClass::Internal,
        }
    }
}
