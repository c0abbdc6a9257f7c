//! What ran: a receipt is written by launches alone, and a fallback that a policy allowed stands in it with its reason.
//!
//!     cargo run --release --example receipts

use gristmill::{
    Device, Input, Linear, LinearOptions, Policy, QuantizedMatrix, REGISTRY, Recording, Restrict, Threads,
};

/// Ends with an error if what it computes is wrong.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (n, k) = (16, 256);
    let (_, format) = REGISTRY.format("i2_s")?;
    // The code 1 is the weight 0, so the scale behind the rows does not matter.
    let bytes = vec![0x55; format.tensor_bytes(n, k)?];
    let matrix = QuantizedMatrix::new(format, n, k, &bytes)?;
    let threads = Threads::single();
    let recording = Recording::new(&REGISTRY);

    // A device that is not there: strict says why not, and with `Policy::Cpu` the processor takes over.
    let restrict = Some(Restrict::default());
    let mut options = LinearOptions { device: Device::cuda(99), restrict, ..LinearOptions::default() };
    match Linear::new(&REGISTRY, &matrix, &options, &threads) {
        Err(refused) => println!("{refused}\n"),
        Ok(_) => return Err("cuda:99 is there".into()),
    }
    options.policy = Policy::Cpu;
    let mut layer = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
    layer.record(Some(&recording))?;
    let mut workspace = layer.workspace(1, &threads)?;
    let mut y = vec![f32::NAN; n];
    layer.forward(Input::F32(&[1.0; 256]), 1, None, &mut y, &mut workspace, &threads)?;

    let receipt = recording.receipt();
    println!("{}", receipt.to_json());
    let ran: u64 = receipt.kernels().iter().map(|kernel| kernel.launches()).sum();
    if ran != 2 || receipt.fallbacks().len() != 1 {
        return Err("a product, its activations and one fallback were expected".into());
    }
    Ok(())
}
