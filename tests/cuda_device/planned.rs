//! A model over several GPUs that differ, on a fake driver: which device gets what, and layers that are made by the plan.
#![cfg(feature = "bitnet")]

use crate::graphs::quantized;
use crate::images::{bits, devices, parent, values};
use crate::support::{is_child, lose, said};
use gristmill::cuda::{DeviceBuffer, DeviceInput, Gpu};
use gristmill::gguf::{
    DevicePlan, DeviceRoom, GgufWriter, LayerOptions, Model, ModelError, TypeNumbers, Value,
};
use gristmill::{
    Device, Error, GuardOptions, GuardedLinear, Input, Linear, LinearOptions, Policy, REGISTRY, Recording,
    RecoveryStep, Threads, Workspace,
};
use std::error::Error as StdError;

const K: usize = 256;
const BLOCKS: usize = 6;

/// Two devices, of which the second has twice the multiprocessors.
fn two() -> String {
    let [oldest, newest] = devices();
    format!("{oldest},devices=2,multiprocessors=4,1:{newest},1:multiprocessors=8")
}

/// A file of square layers, one in each block, and one behind them; with a vector in front.
fn model(folder: &std::path::Path) -> Result<Model, Box<dyn StdError>> {
    let format = REGISTRY.formats.iter().find(|format| format.name == "i2_s").ok_or("i2_s")?;
    let number = format.gguf.ok_or("a type number")?;
    let bytes = quantized(format, &values(K * K, 7), K, K);
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("llama"))?;
    let names = || (0..BLOCKS).map(|block| format!("blk.{block}.ffn_up.weight"));
    writer.tensor("rope_freqs.weight", &[8], 0, 32)?;
    for name in names().chain(["output.weight".to_owned()]) {
        writer.tensor(&name, &[K as u64, K as u64], number, bytes.len() as u64)?;
    }
    let mut stream = writer.write_to(Vec::new())?;
    stream.data("rope_freqs.weight", &[0; 32])?;
    for name in names().chain(["output.weight".to_owned()]) {
        stream.data(&name, &bytes)?;
    }
    let path = folder.join("model.gguf");
    std::fs::write(&path, stream.finish()?)?;
    Ok(Model::open_with(path, TypeNumbers::new(&REGISTRY))?)
}

fn rooms() -> Result<Vec<DeviceRoom>, Error> {
    (0..2).map(DeviceRoom::of_gpu).collect()
}

fn layers(model: &Model) -> Vec<String> {
    let names = model.file().tensors().map(|tensor| tensor.name().to_owned());
    names.filter(|name| name != "rope_freqs.weight").collect()
}

/// The outputs of all layers, one behind the other, on the processor.
fn expected(model: &Model, x: &[f32]) -> Result<Vec<u32>, Box<dyn StdError>> {
    let threads = Threads::single();
    let mut x = x.to_vec();
    for name in layers(model) {
        let layer = model.linear(&name, &LayerOptions::new(&threads))?;
        let mut y = vec![0.0; layer.n()];
        let mut workspace = layer.workspace(1, &threads)?;
        layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
        x = y;
    }
    Ok(bits(&x))
}

fn on_two(name: &str, body: fn() -> Result<(), Box<dyn StdError>>) {
    let output = parent(name, &two());
    if is_child() {
        body().expect("runs");
    }
    if let Some(output) = output {
        assert_eq!(said(&output), "", "all memory is given back");
    }
}

#[test]
fn a_plan_divides_a_model_and_is_followed() {
    on_two("a_plan_divides_a_model_and_is_followed", || {
        let folder = tempfile::tempdir()?;
        let (model, threads) = (model(folder.path())?, Threads::single());
        let options = LayerOptions::new(&threads);
        let plan = DevicePlan::new(&model, &options, &rooms()?)?;
        // By 1 to 2: the vector with two blocks, and four with what is behind them.
        let pieces: Vec<&[String]> = plan.parts().iter().map(|part| &part.pieces[..]).collect();
        assert_eq!(pieces, [&["start", "blk.0", "blk.1"][..], &["blk.2", "blk.3", "blk.4", "blk.5", "end"]]);
        assert_eq!(plan.device_of("blk.1.ffn_up.weight"), Some(Device::cuda(0)));
        assert_eq!(plan.device_of("output.weight"), Some(Device::cuda(1)));
        assert_eq!((plan.device_of("other"), plan.without()), (None, &[][..]));
        let [first, second] = plan.parts() else { panic!("two parts") };
        // Seven layers, of which the second device has five at twice the speed.
        assert!((first.time - 2.0 / 4.5).abs() < 0.01, "{first:?}");
        assert!((first.time + second.time - 1.0).abs() < 1e-9);

        // Layer after layer, activations handed on where the device changes.
        let x = values(K, 3);
        let gpus = [Gpu::open(0)?, Gpu::open(1)?];
        let mut here = DeviceBuffer::of(&gpus[0], &x)?;
        let mut workspace = Workspace::new();
        let mut made: Vec<(Linear, usize)> = Vec::new();
        for name in layers(&model) {
            let layer = model.linear(&name, &plan.options(&name, &options)?)?;
            let at = layer.prepared().device().index as usize;
            assert_eq!(Some(Device::cuda(at as u32)), plan.device_of(&name));
            made.push((layer, at));
        }
        let held: [usize; 2] = [0, 1].map(|at| {
            made.iter().filter(|(_, other)| *other == at).map(|(layer, _)| layer.weight_bytes()).sum()
        });
        // The vector's 32 bytes are somebody else's.
        assert_eq!([held[0] as u64 + 32, held[1] as u64], [first.bytes, second.bytes]);
        for (layer, at) in &made {
            let gpu = &gpus[*at];
            if !std::sync::Arc::ptr_eq(here.gpu(), gpu) {
                workspace.finish()?;
                let mut there = DeviceBuffer::<f32>::zeroed(gpu, K)?;
                there.bring(&here)?;
                here = there;
            }
            let mut y = DeviceBuffer::<f32>::zeroed(gpu, K)?;
            layer.forward_on_device(DeviceInput::F32(&here), 1, None, &mut y, &mut workspace)?;
            here = y;
        }
        workspace.finish()?;
        assert!(bits(&here.to_vec()?) == expected(&model, &x)?);
        Ok(())
    });
}

#[test]
fn a_planned_model_goes_on_when_a_device_is_lost() {
    on_two("a_planned_model_goes_on_when_a_device_is_lost", || {
        let folder = tempfile::tempdir()?;
        let (model, threads) = (model(folder.path())?, Threads::single());
        let linear = LinearOptions { policy: Policy::Cpu, ..LinearOptions::default() };
        let options = LayerOptions { linear, ..LayerOptions::new(&threads) };
        let plan = DevicePlan::new(&model, &options, &rooms()?)?;
        let recording = Recording::new(&REGISTRY);
        let mut guarded = Vec::new();
        for name in layers(&model) {
            let options = plan.options(&name, &options)?.linear;
            let weights = model.matrix(&name)?;
            let layer = GuardedLinear::new(&REGISTRY, weights, &options, GuardOptions::default(), &threads)?;
            layer.record(Some(&recording))?;
            guarded.push(layer);
        }
        let x = values(K, 3);
        let right = expected(&model, &x)?;
        let mut workspace = Workspace::new();
        let mut run = || {
            let mut x = x.clone();
            for layer in &guarded {
                let mut y = vec![0.0; layer.n()];
                layer.forward(Input::F32(&x), 1, None, &mut y, &mut workspace, &threads)?;
                x = y;
            }
            Ok::<_, Error>(bits(&x))
        };
        assert!(run()? == right);
        assert!(recording.receipt().recoveries().is_empty());
        // In the middle of the third layer of the second device.
        lose::at(1, 40);
        assert!(run()? == right);
        assert!(lose::is_lost(1), "it was lost meanwhile");
        assert!(run()? == right);
        let devices: Vec<Option<Device>> = guarded.iter().map(GuardedLinear::device).collect();
        let (first, second) = devices.split_at(2);
        assert_eq!((first, second), (&[Some(Device::cuda(0)); 2][..], &[Some(Device::CPU); 5][..]));
        let receipt = recording.receipt();
        let moved = receipt.recoveries().iter().filter(|step| step.step == RecoveryStep::MovedToProcessor);
        assert_eq!(moved.filter(|step| step.success).count(), 5);
        // What is left is planned anew: the first has room for all.
        let plan = DevicePlan::new(&model, &options, &rooms()?[..1])?;
        assert_eq!(plan.device_of("output.weight"), Some(Device::cuda(0)));
        drop(guarded);
        lose::never(1);
        Ok(())
    });
}

#[test]
fn what_has_no_room_or_no_kernel_is_told() {
    on_two("what_has_no_room_or_no_kernel_is_told", || {
        let folder = tempfile::tempdir()?;
        let (model, threads) = (model(folder.path())?, Threads::single());
        let options = LayerOptions::new(&threads);
        let all: u64 =
            DevicePlan::new(&model, &options, &rooms()?)?.parts().iter().map(|part| part.bytes).sum();
        let mut small = rooms()?;
        small[1].bytes = all / 2;
        // The faster one has room for three of seven.
        let plan = DevicePlan::new(&model, &options, &small)?;
        assert_eq!(plan.parts()[1].pieces, ["blk.4", "blk.5", "end"]);
        small[0].bytes = all / 4;
        match DevicePlan::new(&model, &options, &small) {
            Err(ModelError::Devices { why }) => assert!(why.contains(&format!("{all} bytes")), "{why}"),
            other => panic!("{other:?}"),
        }
        // A device that is not there has no kernels.
        let nowhere = [DeviceRoom { device: Device::cuda(5), bytes: u64::MAX, speed: 1.0 }];
        let plan = DevicePlan::new(&model, &options, &nowhere)?;
        assert_eq!(plan.without().len(), 7);
        let (tensor, why) = &plan.without()[0];
        assert!(tensor.starts_with("blk.0.") && why.contains("no kernel"), "{tensor}: {why}");
        assert!(plan.options(tensor, &options).is_err());
        Ok(())
    });
}
