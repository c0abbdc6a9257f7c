//! What a call through the C interface takes beyond the same call of the Rust library:
//!
//!     bindings/c/install PREFIX
//!     cargo run --release --manifest-path bindings/c/Cargo.toml --example overhead -- PREFIX/lib/libgristmill.so
//!
//! The shared library is loaded and called by its symbols, as a C program does. Both calls compute one token of the same small layer on
//! one thread, by turns, so that what else the machine does meets both of them alike; medians are of turns, and the difference is
//! the median of the differences within a turn. `--turns N` sets how many turns there are. Ends with an error if the two give other bits.

use gristmill::{
    Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, REGISTRY, Recording, Request, Restrict, Threads,
};
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::time::Instant;

const N: usize = 16;
const K: usize = 256;
/// Calls of a turn: so many that reading the clock does not count.
const CALLS: u32 = 2000;

type LinearNew = unsafe extern "C" fn(
    *const c_char,
    usize,
    usize,
    *const u8,
    usize,
    *const c_char,
    *const c_void,
    *mut *mut c_void,
) -> c_int;
type LinearForward = unsafe extern "C" fn(
    *const c_void,
    *const f32,
    usize,
    usize,
    *const f32,
    *mut f32,
    usize,
    *const c_void,
    *const c_void,
) -> c_int;

/// Nanoseconds of a call.
fn each(mut call: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS))
}

/// The value below which a part of the others are.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(((values.len().saturating_sub(1)) as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut turns, mut path) = (500, None);
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--turns" {
            let count = arguments.next().and_then(|count| count.to_str()?.parse().ok()).filter(|n| *n > 0);
            turns = count.ok_or("--turns expects a number of turns, 1 or more")?;
        } else {
            path = Some(PathBuf::from(argument));
        }
    }
    let path =
        path.ok_or("no library\n  help: give the path of libgristmill.so, which bindings/c/install makes")?;

    let w: Vec<f32> = (0..N * K).map(|i| (i % 3) as f32 - 1.0).collect();
    let x: Vec<f32> = (0..K).map(|i| (i % 11) as f32 - 5.0).collect();
    let format = REGISTRY.format("i2_s")?.1;
    let mut blocks = vec![0; format.tensor_bytes(N, K)?];
    let prepared = REGISTRY.prepare(&Request::quantize("i2_s", None, N, K))?;
    Quantizer::new(&prepared.decide_as_asked())?.run(&w, N, K, &mut blocks)?;

    // The Rust library, set up as the C interface sets it up.
    let threads = Threads::single();
    let options = LinearOptions { restrict: Some(Restrict::default()), ..LinearOptions::default() };
    let matrix = QuantizedMatrix::new(format, N, K, &blocks)?;
    let mut layer = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
    let recording = Recording::new(&REGISTRY);
    layer.record(Some(&recording))?;
    let mut workspace = layer.workspace(1, &threads)?;

    // SAFETY: gristmill's library runs nothing when it is loaded.
    let library = unsafe { Library::new(&path) }.map_err(|error| {
        format!(
            "{}: {error}\n  help: give the path of libgristmill.so, which bindings/c/install makes",
            path.display()
        )
    })?;
    // SAFETY: the types are those of include/gristmill.h.
    let (new, forward, workspace_new, last_error) = unsafe {
        (
            library.get::<LinearNew>("gm_linear_new")?,
            library.get::<LinearForward>("gm_linear_forward")?,
            library.get::<unsafe extern "C" fn(*mut *mut c_void) -> c_int>("gm_workspace_new")?,
            library.get::<unsafe extern "C" fn() -> *const c_char>("gm_last_error")?,
        )
    };
    let done = |status: c_int| match status {
        0 => Ok(()),
        // SAFETY: a text of the library, which stays until the next failure.
        _ => Err(unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned()),
    };
    let (mut c_layer, mut c_workspace) = (null_mut(), null_mut());
    // SAFETY: buffers of the lengths that are said, and places for handles. The process ends with them.
    unsafe {
        done(new(c"i2_s".as_ptr(), N, K, blocks.as_ptr(), blocks.len(), null(), null(), &mut c_layer))?;
        done(workspace_new(&mut c_workspace))?;
    }
    let c_call = |m: usize, y: &mut [f32]| -> Result<(), Box<dyn Error>> {
        let (y_len, x_len) = (m * N, m * K);
        assert!(y_len <= y.len() && x_len <= x.len(), "buffers for {m} tokens");
        // SAFETY: handles of this library, and buffers of at least the lengths that are said.
        let status = unsafe {
            let (x, y) = (black_box(x.as_ptr()), y.as_mut_ptr());
            forward(c_layer, x, x_len, m, null(), y, y_len, c_workspace, null())
        };
        Ok(done(status)?)
    };

    let (mut y_rust, mut y_c) = (vec![0.0; N], vec![0.0; N]);
    let [mut rust, mut c, mut empty, mut beyond] = [(); 4].map(|()| Vec::with_capacity(turns));
    for turn in 0..=turns {
        let of_rust = each(|| {
            let x = Input::F32(black_box(&x));
            Ok(layer.forward(x, 1, None, &mut y_rust, &mut workspace, &threads)?)
        })?;
        let of_c = each(|| c_call(1, &mut y_c))?;
        let of_empty = each(|| c_call(0, &mut y_c))?;
        // The first warms up.
        if turn > 0 {
            rust.push(of_rust);
            c.push(of_c);
            empty.push(of_empty);
            beyond.push(of_c - of_rust);
        }
    }
    if y_rust.iter().zip(&y_c).any(|(a, b)| a.to_bits() != b.to_bits()) {
        return Err(format!("the C interface gives other bits: {y_c:?}, the Rust library {y_rust:?}").into());
    }
    println!("one token of a layer {N}x{K} of i2_s, one thread; medians of {turns} turns of {CALLS} calls");
    println!("Rust library           {:5.0} ns", quantile(&mut rust, 0.5));
    println!("C interface            {:5.0} ns", quantile(&mut c, 0.5));
    let [low, middle, high] = [0.1, 0.5, 0.9].map(|part| quantile(&mut beyond, part));
    println!("C beyond Rust          {middle:5.0} ns (four of five turns: {low:.0} to {high:.0})");
    println!("C call without tokens  {:5.0} ns", quantile(&mut empty, 0.5));
    Ok(())
}
