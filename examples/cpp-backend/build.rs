//! Looks for a C++ backend, and tells the compiler and the linker what there is.

fn main() {
    gristmill_probe::build::Backend::new().cuda_with_feature("cuda").emit();
}
