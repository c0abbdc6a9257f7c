//! Images as they stand in a binary: deflated, a quarter of their bytes, with what a driver must support to load them. The
//! runtime inflates what a device loads.

use miniz_oxide::deflate::compress_to_vec;
use std::ops::Range;

/// More than the library's default makes images one percent smaller and takes twice as long.
const LEVEL: u8 = 6;

/// The lowest version of CUDA that the runtime talks to at all.
const OLDEST: (u32, u32) = (12, 0);

/// Packs an image.
pub(crate) fn pack(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, LEVEL)
}

/// The CUDA that a driver must support to load an image, as the image's own header tells.
pub fn needed_driver(bytes: &[u8], ptx: bool) -> (u32, u32) {
    if !ptx {
        // The ABI's version in the ELF header: 8 from CUDA 13.0 on.
        let abi = bytes.get(8).copied().unwrap_or(0);
        return if abi >= 8 { (13, 0) } else { OLDEST };
    }
    ptx_version(bytes).map_or(OLDEST, |(_, version)| driver_for_ptx(version))
}

/// Where the number behind `.version` at the start of a line of PTX stands, and what it is.
pub(crate) fn ptx_version(ptx: &[u8]) -> Option<(Range<usize>, (u32, u32))> {
    let name = b".version ";
    let mut begin = 0;
    for line in ptx.split_inclusive(|byte| *byte == b'\n') {
        if let Some(number) = line.strip_prefix(name) {
            let number = std::str::from_utf8(number).ok()?.trim_end_matches(['\0', ' ', '\r', '\n']);
            let (major, minor) = number.split_once('.')?;
            let start = begin + name.len();
            return Some((start..start + number.len(), (major.parse().ok()?, minor.parse().ok()?)));
        }
        begin += line.len();
    }
    None
}

/// The CUDA that a version of PTX came with. In series 8 two releases of CUDA brought none.
fn driver_for_ptx((major, minor): (u32, u32)) -> (u32, u32) {
    let minor = if major == 8 && minor >= 6 { minor + 1 } else { minor };
    (major + 4, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        for bytes in [vec![], vec![7; 70_000], (0..=255).cycle().take(1000).collect()] {
            let packed = pack(&bytes);
            assert_eq!(miniz_oxide::inflate::decompress_to_vec(&packed).unwrap(), bytes);
        }
        assert!(pack(&[7; 70_000]).len() < 300);
    }

    #[test]
    fn headers_tell_the_driver() {
        let cubin = |abi| [b'\x7f', b'E', b'L', b'F', 2, 1, 1, 0x41, abi, 0];
        assert_eq!((needed_driver(&cubin(7), false), needed_driver(&cubin(8), false)), ((12, 0), (13, 0)));
        let ptx = |version: &str| format!("//\n// .version 1.0\n.version {version}\r\n.target sm_80\n\0");
        for (version, driver) in [
            ("7.4", (11, 4)),
            ("8.0", (12, 0)),
            ("8.5", (12, 5)),
            ("8.6", (12, 7)),
            ("8.8", (12, 9)),
            ("9.0", (13, 0)),
        ] {
            assert_eq!(needed_driver(ptx(version).as_bytes(), true), driver, "{version}");
        }
        assert_eq!(needed_driver(b"", true), (12, 0));
        assert_eq!(needed_driver(b"", false), (12, 0));
    }
}
