//! Which file the system's loader has mapped, or would take, for a name.
//!
//! A loader that has a library of some SONAME gives it to whoever asks for that name, wherever their own one lies. So
//! what was validated is compared with what is mapped: before loading, so that nothing of a library runs that would
//! call into another version, and once more afterwards.

use std::path::{Path, PathBuf};

/// What is mapped for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// What to call it.
    pub(super) shown: String,
    /// The file, unless it was deleted or replaced since.
    pub(super) path: Option<PathBuf>,
}

/// Whether this system shows what is mapped.
pub(super) const IS_SEEN: bool = cfg!(target_os = "linux");

/// What this process has loaded that the loader gives out for a name, or for a path; `None` if it would have to load
/// it first.
///
/// # Errors
/// What the system says where the list of mappings can't be read.
#[cfg(target_os = "linux")]
pub(super) fn loaded(name: &Path) -> std::io::Result<Option<Mapped>> {
    use libloading::os::unix::{Library, RTLD_LAZY};
    // An empty name is the program itself.
    if name.as_os_str().is_empty() {
        return Ok(None);
    }
    // SAFETY: with RTLD_NOLOAD nothing is loaded, so no initializer runs; the loader only looks for what it has.
    let Ok(library) = (unsafe { Library::open(Some(name), RTLD_LAZY | libc::RTLD_NOLOAD) }) else {
        return Ok(None);
    };
    let handle = library.into_raw();
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: the handle is open. For this question `dlinfo` writes a pointer to where the third argument points.
    let answer = unsafe { dlinfo(handle, RTLD_DI_LINKMAP, (&raw mut map).cast()) };
    let dynamic = if answer == 0 && !map.is_null() {
        // SAFETY: the loader's entry of a library lives for as long as the library is loaded, which the handle keeps.
        Some(unsafe { (*map).dynamic }.addr())
    } else {
        None
    };
    let mapped = dynamic.map(|address| mapping_of(&std::fs::read("/proc/self/maps")?, address)).transpose();
    // SAFETY: the handle is from `into_raw` and is not used any more.
    drop(unsafe { Library::from_raw(handle) });
    // What can't be told is no file that was validated.
    Ok(Some(mapped?.flatten().unwrap_or(Mapped { shown: String::from("memory without a file"), path: None })))
}

/// What this process has loaded; here it can't be seen.
///
/// # Errors
/// Never.
#[cfg(not(target_os = "linux"))]
pub(super) fn loaded(_: &Path) -> std::io::Result<Option<Mapped>> {
    Ok(None)
}

/// The public part of the loader's entry of a library, as `link.h` has it in glibc and musl.
#[cfg(target_os = "linux")]
#[repr(C)]
struct LinkMap {
    _base: usize,
    _name: *const std::ffi::c_char,
    /// Its dynamic section, which is mapped from its file.
    dynamic: *const std::ffi::c_void,
}

/// The question for a [`LinkMap`], in glibc and musl.
#[cfg(target_os = "linux")]
const RTLD_DI_LINKMAP: std::ffi::c_int = 2;

#[cfg(target_os = "linux")]
unsafe extern "C" {
    fn dlinfo(
        handle: *mut std::ffi::c_void,
        request: std::ffi::c_int,
        answer: *mut std::ffi::c_void,
    ) -> std::ffi::c_int;
}

/// The file behind an address, from the kernel's list of mappings: it follows files that were renamed, and says
/// which were deleted.
#[cfg(target_os = "linux")]
fn mapping_of(maps: &[u8], address: usize) -> std::io::Result<Option<Mapped>> {
    use std::os::unix::ffi::OsStrExt;
    for line in maps.split(|byte| *byte == b'\n') {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let Some((range, name)) = fields.next().zip(fields.nth(4)) else { continue };
        let range = String::from_utf8_lossy(range);
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let Some((start, end)) = range.split_once('-').and_then(|(a, b)| number(a).zip(number(b))) else {
            continue;
        };
        if !(start..end).contains(&address) {
            continue;
        }
        let name = name.trim_ascii_start();
        if !name.starts_with(b"/") {
            return Ok(None);
        }
        let name = unescaped(name);
        let path = Path::new(std::ffi::OsStr::from_bytes(&name));
        let shown = path.display().to_string();
        let deleted = name.ends_with(b" (deleted)");
        return Ok(Some(Mapped { shown, path: (!deleted).then(|| path.to_owned()) }));
    }
    Ok(None)
}

/// The kernel writes an end of line as `\012`, and nothing else in such a way.
#[cfg(target_os = "linux")]
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((byte, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(*byte);
            rest = tail;
        }
    }
    plain
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let maps = b"1000-2000 r--p 00000000 08:01 77        /opt/a b/libx.so\n\
            2000-3000 rw-p 00001000 08:01 77        /opt/a b/libx.so\n\
            3000-4000 rw-p 00000000 00:00 0 \n\
            4000-5000 r--p 00000000 08:01 78        /opt/liby.so (deleted)\n\
            5000-6000 r--p 00000000 08:01 79        /opt/two\\012lines.so\n\
            7000-8000 r-xp 00000000 00:00 0         [vdso]\n\
            rubbish\n";
        let at = |address| mapping_of(maps, address).expect("readable");
        let path = |address| at(address).and_then(|mapped| mapped.path);
        assert_eq!(path(0x1000), Some(PathBuf::from("/opt/a b/libx.so")));
        assert_eq!(path(0x2FFF), Some(PathBuf::from("/opt/a b/libx.so")));
        assert_eq!(path(0x5000), Some(PathBuf::from("/opt/two\nlines.so")));
        assert_eq!(at(0x4800).map(|m| (m.shown, m.path)), Some(("/opt/liby.so (deleted)".to_owned(), None)));
        for nothing in [0, 0x3000, 0x6000, 0x7000, usize::MAX] {
            assert_eq!(at(nothing), None, "{nothing:x}");
        }
    }

    #[test]
    fn the_c_library_is_seen_and_what_is_not_loaded_is_not() {
        let libc = loaded(Path::new("libc.so.6")).expect("readable");
        if cfg!(target_env = "gnu") {
            let path = libc.and_then(|mapped| mapped.path).expect("it is mapped from a file");
            assert!(path.file_name().is_some_and(|name| name.to_string_lossy().contains("libc")), "{path:?}");
        }
        for name in ["libno-such-thing.so.7", "/no/such/file.so", ""] {
            assert_eq!(loaded(Path::new(name)).expect("readable"), None, "{name}");
        }
    }
}
