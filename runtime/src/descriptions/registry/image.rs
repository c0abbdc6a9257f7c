//! Images of kernels for GPUs, and which of them a device takes.

use crate::gpu::CudaVersion;
use gristmill_spec::vocab::CudaArch;

/// Code for a GPU in this binary.
#[derive(Clone, Copy)]
pub struct CudaImage {
    /// The architecture it was compiled for.
    pub arch: CudaArch,
    /// PTX text, which the driver compiles for devices from `arch` up, and not machine code.
    pub ptx: bool,
    /// The oldest CUDA of drivers that load it.
    pub driver: CudaVersion,
    /// What its functions use of a multiprocessor, as the assembler told; empty for PTX, for which the driver decides.
    pub usage: &'static [CudaUsage],
    /// Bytes of the image.
    pub size: usize,
    /// The image, deflated (RFC 1951).
    pub packed: &'static [u8],
}

/// What a function of an image uses of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaUsage {
    /// Its name in the image.
    pub function: &'static str,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory of a CUDA block, without those that a launch adds.
    pub shared: u32,
    /// Bytes of local memory of a thread: its stack, and registers that did not fit.
    pub stack: u32,
}

impl CudaImage {
    /// As NVIDIA's compilers name what it was compiled for: `sm_90a`, or `compute_75` for PTX.
    pub fn target(&self) -> String {
        format!("{}_{}", if self.ptx { "compute" } else { "sm" }, self.arch)
    }

    /// What a function uses. `None` for PTX, and for what is not in the image.
    pub fn usage_of(&self, function: &str) -> Option<&'static CudaUsage> {
        self.usage.iter().find(|usage| usage.function == function)
    }

    /// The image itself, `size` bytes. `None` where what is packed is no image of that size, which no build makes.
    #[cfg(feature = "cuda")]
    pub fn unpacked(&self) -> Option<Vec<u8>> {
        let bytes = miniz_oxide::inflate::decompress_to_vec_with_limit(self.packed, self.size).ok()?;
        (bytes.len() == self.size).then_some(bytes)
    }
}

impl std::fmt::Debug for CudaImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.target(), self.size)
    }
}

/// Why none of a kernel's images runs on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoImage {
    /// None is for this device.
    Architecture { built: Vec<CudaArch> },
    /// One is, but the driver is too old for it.
    Driver { needed: CudaVersion },
}

impl CudaImage {
    /// Whether a device of this compute capability is given it by a driver of this version: machine code of its generation, and PTX that
    /// the driver compiles.
    pub fn serves(&self, cc: (u8, u8), driver: CudaVersion) -> bool {
        self.fits(cc) && self.driver <= driver
    }

    /// Whether it is for such a device.
    fn fits(&self, cc: (u8, u8)) -> bool {
        if self.ptx && !self.arch.specific { self.arch.cc() <= cc } else { self.arch.runs_on(cc) }
    }

    /// The larger, the better for such a device, which it fits: machine code for exactly this one, else for the nearest older one of
    /// its generation, else PTX of the newest architecture that it has, else machine code that runs there as far as anybody knows.
    fn rank(&self, cc: (u8, u8)) -> (u8, bool, (u8, u8)) {
        let kind = match (self.ptx, self.arch.is_promised_on(cc)) {
            (false, true) => 2,
            (true, _) => 1,
            (false, false) => 0,
        };
        (kind, self.arch.specific, self.arch.cc())
    }
}

/// The image that a device is given first.
pub(crate) fn image_for(
    images: &'static [CudaImage],
    cc: (u8, u8),
    driver: CudaVersion,
) -> Result<&'static CudaImage, NoImage> {
    let serving = images.iter().filter(|image| image.serves(cc, driver));
    if let Some(best) = serving.max_by_key(|image| image.rank(cc)) {
        return Ok(best);
    }
    match images.iter().filter(|image| image.fits(cc)).map(|image| image.driver).min() {
        Some(needed) => Err(NoImage::Driver { needed }),
        None => {
            let mut built: Vec<CudaArch> = images.iter().map(|image| image.arch).collect();
            built.sort_unstable();
            built.dedup();
            Err(NoImage::Architecture { built })
        }
    }
}

/// All images that a device may be given, the first one first: a driver that refuses it may take another.
#[cfg(feature = "cuda")]
pub(crate) fn images_for(
    images: &'static [CudaImage],
    cc: (u8, u8),
    driver: CudaVersion,
) -> Result<Vec<&'static CudaImage>, NoImage> {
    image_for(images, cc, driver)?;
    let mut ranked: Vec<&'static CudaImage> =
        images.iter().filter(|image| image.serves(cc, driver)).collect();
    ranked.sort_by_key(|image| std::cmp::Reverse(image.rank(cc)));
    Ok(ranked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arch(name: &str) -> CudaArch {
        CudaArch::from_name(name).expect("an architecture")
    }

    const fn at(major: u32, minor: u32) -> CudaVersion {
        CudaVersion { major, minor }
    }

    fn cubin(name: &str, driver: CudaVersion) -> CudaImage {
        CudaImage { arch: arch(name), ptx: false, driver, usage: &[], size: 0, packed: &[] }
    }

    fn ptx(name: &str, driver: CudaVersion) -> CudaImage {
        CudaImage { ptx: true, ..cubin(name, driver) }
    }

    const NEW: CudaVersion = at(13, 0);

    fn chosen(images: &[CudaImage], cc: (u8, u8), driver: CudaVersion) -> Result<String, NoImage> {
        image_for(images.to_vec().leak(), cc, driver).map(|image| format!("{image:?}"))
    }

    #[test]
    fn the_nearest_machine_code_then_ptx() {
        let images = [
            cubin("75", NEW),
            cubin("80", NEW),
            cubin("86", NEW),
            cubin("90", NEW),
            cubin("90a", NEW),
            ptx("75", at(11, 4)),
        ];
        let name =
            |cc| chosen(&images, cc, NEW).map(|text| text.split(' ').next().unwrap_or_default().to_owned());
        for (cc, expected) in [
            ((7, 5), "sm_75"),
            ((8, 0), "sm_80"),
            ((8, 6), "sm_86"),
            ((8, 9), "sm_86"),
            ((9, 0), "sm_90a"),
            // Nobody promises that code of 8.0 runs on Tegra: the driver compiles the PTX.
            ((8, 7), "compute_75"),
            // No machine code of this generation: likewise.
            ((10, 0), "compute_75"),
            ((12, 1), "compute_75"),
        ] {
            assert_eq!(name(cc).as_deref(), Ok(expected), "{cc:?}");
        }
        let built = [arch("75"), arch("80"), arch("86"), arch("90"), arch("90a")];
        assert_eq!(name((7, 0)), Err(NoImage::Architecture { built: built.to_vec() }));
        assert_eq!(name((6, 1)), Err(NoImage::Architecture { built: built.to_vec() }));
        // A minor version below is no help.
        assert!(chosen(&[cubin("86", NEW)], (8, 0), NEW).is_err());
        assert!(chosen(&[cubin("90a", NEW)], (10, 0), NEW).is_err());
        assert!(chosen(&[ptx("90a", at(12, 0))], (10, 0), NEW).is_err());
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn what_is_tried_next() {
        let images = [
            cubin("80", NEW),
            cubin("86", NEW),
            cubin("87", NEW),
            ptx("75", at(11, 4)),
            ptx("80", at(11, 4)),
        ];
        let names = |cc| {
            let ranked = images_for(images.to_vec().leak(), cc, NEW).expect("some fit");
            ranked.into_iter().map(CudaImage::target).collect::<Vec<_>>()
        };
        assert_eq!(names((8, 6)), ["sm_86", "sm_80", "compute_80", "compute_75"]);
        // Tegra's own, and what nobody promises last.
        assert_eq!(names((8, 7)), ["sm_87", "compute_80", "compute_75", "sm_86", "sm_80"]);
        assert_eq!(names((8, 9)), ["sm_86", "sm_80", "compute_80", "compute_75", "sm_87"]);
        assert_eq!(names((9, 0)), ["compute_80", "compute_75"]);
        assert!(images_for(images.to_vec().leak(), (7, 0), NEW).is_err());
    }

    #[test]
    fn an_old_driver_takes_what_it_can() {
        let images = [cubin("86", NEW), ptx("75", at(11, 4))];
        assert!(chosen(&images, (8, 6), at(13, 0)).is_ok_and(|text| text.starts_with("sm_86")));
        assert!(chosen(&images, (8, 6), at(12, 9)).is_ok_and(|text| text.starts_with("compute_75")));
        assert!(chosen(&[cubin("86", at(12, 0))], (8, 6), at(12, 0)).is_ok());
        let newer = [cubin("86", NEW), ptx("75", at(12, 8))];
        assert_eq!(chosen(&newer, (8, 6), at(12, 7)), Err(NoImage::Driver { needed: at(12, 8) }));
        assert!(chosen(&newer, (8, 6), at(12, 8)).is_ok());
    }
}
