//! Kernels that take turns on the work of layers: the same bits, weights once, the fastest stays and is told.
#![cfg(feature = "bitnet")]

use crate::random::Random;
use gristmill::tuning::cpu;
use gristmill::{
    Adaptive, CpuProfile, Error, Input, Linear, LinearOptions, QuantizedMatrix, Quantizer, REGISTRY,
    Recording, Request, Restrict, Shape, Threads, Tuning,
};
use std::collections::BTreeMap;

const N: usize = 96;
const K: usize = 256;

fn tensor() -> Result<Vec<u8>, Error> {
    let prepared = REGISTRY.prepare(&Request::quantize("i2_s", None, N, K))?;
    let quantizer = Quantizer::new(&prepared.decide_as_asked())?;
    let mut bytes = vec![0; quantizer.format().tensor_bytes(N, K)?];
    quantizer.run(&Random::new(5, "adaptive").gauss_vec(N * K, 1.0), N, K, &mut bytes)?;
    Ok(bytes)
}

/// Launches of products by kernel.
fn launches(recording: &Recording) -> BTreeMap<&'static str, u64> {
    let receipt = recording.receipt();
    let products = receipt.kernels().iter().filter(|kernel| kernel.name().starts_with("matmul."));
    products.map(|kernel| (kernel.name(), kernel.launches())).collect()
}

#[test]
fn kernels_take_turns_and_one_of_them_stays() -> Result<(), Error> {
    let bytes = tensor()?;
    let (_, format) = REGISTRY.format("i2_s")?;
    let matrix = QuantizedMatrix::new(format, N, K, &bytes)?;
    let threads = Threads::new(2)?;
    let plain = Linear::new(&REGISTRY, &matrix, &LinearOptions::default(), &threads)?;
    assert!(plain.adapted(1).is_none(), "it is off by default");
    let adaptive = Adaptive::default();
    let options = LinearOptions { adaptive: Some(adaptive.clone()), ..LinearOptions::default() };
    let mut layers = [(), ()].map(|()| Linear::new(&REGISTRY, &matrix, &options, &threads));
    let Some(first) = layers[0].as_ref().ok().and_then(|layer| layer.adapted(1)) else {
        layers[0].as_ref().map_err(Clone::clone)?;
        println!("ran 0 of 1: this processor has one kernel for the packing");
        return Ok(());
    };
    assert_eq!((first.turns, first.chosen, first.threads), (0, None, 2), "{first}");
    assert_eq!(first.of, 8 * first.kernels.len());
    let recording = Recording::new(&REGISTRY);
    for layer in &mut layers {
        let layer = layer.as_mut().map_err(|error| error.clone())?;
        layer.record(Some(&recording))?;
        // All kernels read what is there.
        assert_eq!(layer.weight_bytes(), plain.weight_bytes());
    }
    let [one, two] = &layers;
    let both = [one.as_ref().map_err(Clone::clone)?, two.as_ref().map_err(Clone::clone)?];
    let mut random = Random::new(9, "activations");
    let (mut expected, mut found) = (vec![0.0; N], vec![0.0; N]);
    let mut workspace = plain.workspace(1, &threads)?;
    let mut ours = both[0].workspace(1, &threads)?;
    let mut call = |call: usize, quantized: bool| -> Result<(), Error> {
        let x = random.gauss_vec(K, 1.0);
        plain.forward(Input::F32(&x), 1, None, &mut expected, &mut workspace, &threads)?;
        found.fill(f32::NAN);
        if quantized {
            let x = both[0].quantize(Input::F32(&x), 1, &mut ours, &threads)?;
            both[call % 2].forward_quantized(&x, None, &mut found, &threads)?;
        } else {
            both[call % 2].forward(Input::F32(&x), 1, None, &mut found, &mut ours, &threads)?;
        }
        let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "call {call}");
        Ok(())
    };
    // Both layers share the turns, whichever way they are called.
    for at in 0..first.of {
        assert_eq!(
            both[0].adapted(1).map(|adapted| (adapted.turns, adapted.chosen.is_some())),
            Some((at, false))
        );
        call(at, at % 3 == 0)?;
    }
    let adapted = both[1].adapted(1).expect("it takes turns");
    let chosen = adapted.chosen.expect("all turns were taken");
    let timed = adapted.kernels.iter().filter_map(|(name, us)| Some((*name, (*us)?)));
    let best = timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, _)| name);
    assert_eq!(Some(chosen), best, "{adapted}");
    assert!(
        adapted.to_string().contains(&format!("`{chosen}` after {} calls in turns; a token: ", first.of))
    );
    let before = launches(&recording);
    assert_eq!(before.values().sum::<u64>(), first.of as u64);
    // Each had its first turn.
    assert!(adapted.kernels.iter().all(|(name, _)| before.contains_key(name)), "{before:?}");
    for at in 0..10 {
        call(at, at % 2 == 0)?;
    }
    let mut after = launches(&recording);
    *after.get_mut(chosen).expect("it ran") -= 10;
    assert_eq!(after, before, "only `{chosen}` runs");

    // As a tuning, other programs begin with it.
    let text = Tuning::of(adaptive.measured()).text("");
    let tuning = Tuning::parse(&text, &REGISTRY, cpu());
    assert!(tuning.set_aside().is_empty() && tuning.measured().len() == 1, "{text}");
    let shape = Shape::new(1, N, K);
    let request = Request::matmul("i2_s", shape).with_threads(2);
    let prepared = REGISTRY.prepare_tuned(&request, CpuProfile::detect(), &Restrict::default(), &tuning)?;
    let decision = prepared.decide(shape);
    assert_eq!(decision.chosen().map(|entry| entry.name), Some(chosen));
    assert_eq!(decision.tuned_by().map(|tuned| tuned.threads), Some(2));
    Ok(())
}

/// What is an error is a turn without a time, and changes nothing else.
#[test]
fn calls_that_fail_end_their_turn() -> Result<(), Error> {
    let bytes = tensor()?;
    let (_, format) = REGISTRY.format("i2_s")?;
    let matrix = QuantizedMatrix::new(format, N, K, &bytes)?;
    let threads = Threads::single();
    let options = LinearOptions { adaptive: Some(Adaptive::default()), ..LinearOptions::default() };
    let layer = Linear::new(&REGISTRY, &matrix, &options, &threads)?;
    let Some(first) = layer.adapted(1) else {
        println!("ran 0 of 1: this processor has one kernel for the packing");
        return Ok(());
    };
    let (mut y, mut workspace) = (vec![0.0; N], layer.workspace(1, &threads)?);
    let bad = vec![f32::NAN; K];
    for _ in 0..first.of {
        let failed = layer.forward(Input::F32(&bad), 1, None, &mut y, &mut workspace, &threads);
        assert!(matches!(failed, Err(Error::NonFinite { row: 0, column: 0 })), "{failed:?}");
    }
    // Nothing was measured: the decision's kernel stays.
    let adapted = layer.adapted(1).expect("it takes turns");
    assert_eq!(adapted.chosen, Some(first.kernels[0].0), "{adapted}");
    assert!(adapted.kernels.iter().all(|(_, us)| us.is_none()), "{adapted}");
    Ok(())
}
