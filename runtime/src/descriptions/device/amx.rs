//! Whether this process may use x86's matrix unit (AMX): the processor has it, the system saves its registers, and the process was let.
//!
//! Linux gives the registers, eight kilobytes of a thread's state, to those that ask. Asking costs nothing until a tile is loaded, holds
//! for all threads of the process, and is inherited by forks. (Linux, Documentation/arch/x86/xstate.rst; bits: Intel 64 and IA-32
//! Architectures Software Developer's Manual, volume 1, chapter 18.)

/// Whether tiles of int8 can be multiplied here.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn int8() -> bool {
    has_instructions() && permitted()
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn int8() -> bool {
    false
}

/// Leaf 7 names AMX-TILE and AMX-INT8, leaf 0x1d the first palette with tiles of sixteen rows of 64 bytes.
#[cfg(all(target_os = "linux", not(miri)))]
fn has_instructions() -> bool {
    use std::arch::x86_64::__cpuid_count;
    #[allow(unused_unsafe, reason = "the intrinsic is safe in newer compilers only")]
    // SAFETY: every x86-64 processor has the instruction, and leaf 0; the others are read where it says that they are there.
    unsafe {
        let leaves = __cpuid_count(0, 0).eax;
        if leaves < 0x1d {
            return false;
        }
        let extensions = __cpuid_count(7, 0).edx;
        let (tile, int8) = (extensions >> 24 & 1, extensions >> 25 & 1);
        let palette = __cpuid_count(0x1d, 1);
        let (bytes_per_row, names, rows) = (palette.ebx & 0xffff, palette.ebx >> 16, palette.ecx & 0xffff);
        tile == 1 && int8 == 1 && bytes_per_row == 64 && names == 8 && rows == 16
    }
}

/// Asks Linux for the registers of tiles. Kernels before 5.16, and sandboxes that forbid the call, say no.
#[cfg(all(target_os = "linux", not(miri)))]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and no address; what it changes is described above.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}
