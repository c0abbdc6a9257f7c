//! What the runtime writes of a receipt is what the type writes: the same bytes.

#[path = "../../runtime/tests/toy/mod.rs"]
mod toy;

use gristmill_records::receipt::Receipt;
use gristmill_runtime::{
    Device, Error, Input, Linear, LinearOptions, Policy, QuantizedMatrix, Recording, Threads,
};

fn same(json: &str) -> Receipt {
    let receipt: Receipt = serde_json::from_str(json).expect("a receipt");
    assert_eq!(serde_json::to_string(&receipt).expect("JSON"), json);
    receipt
}

#[test]
fn the_runtime_writes_what_the_type_writes() -> Result<(), Error> {
    let recording = Recording::new(&toy::REGISTRY);
    assert!(same(&recording.receipt().to_json()).kernels.is_empty());
    let (n, k) = (8, 16);
    let bytes = toy::tail2(n, k);
    let matrix = QuantizedMatrix::new(&toy::FORMATS[toy::TAIL2], n, k, &bytes)?;
    let threads = Threads::single();
    // With a fallback.
    let options = LinearOptions { device: Device::cuda(9), policy: Policy::Cpu, ..LinearOptions::default() };
    let mut layer = Linear::new(&toy::REGISTRY, &matrix, &options, &threads)?;
    layer.record(Some(&recording))?;
    let mut y = vec![0.0; n];
    let mut workspace = layer.workspace(1, &threads)?;
    layer.forward(Input::F32(&toy::noise(k, 1)), 1, None, &mut y, &mut workspace, &threads)?;
    let receipt = same(&recording.receipt().to_json());
    assert_eq!((receipt.fallbacks.len(), receipt.fallbacks[0].runs), (1, 1));
    assert!(
        receipt.kernels.iter().any(|kernel| kernel.name.starts_with("matmul.tail2") && kernel.launches == 1)
    );
    Ok(())
}

/// Parts, reasons for packings and steps of recovery, as tests of the runtime (`handles/guarded.rs`) and of GPUs have them.
#[test]
fn every_part_of_a_receipt_is_in_the_type() {
    let json = concat!(
        r#"{"schema_version":1,"package":"toy + own","devices":["cpu","cuda"],"cpu":{"arch":"x86_64","features":["avx2"]},"#,
        r#""kernels":[{"id":"01","name":"a","source":"a:1","package":"own","launches":3,"#,
        r#""from_memory":{"packing":"p","instead_of":"q","working_set":5,"cache":4},"held_once":{"packing":"p","instead_of":"q"}}],"#,
        r#""fallbacks":[{"policy":"cpu","op":"matmul","format":"f","device":"cuda:0","reason":"r","instead":"i","runs":2}],"#,
        r#""parts":[{"device":"cuda:1","format":"f","n":32,"k":64,"rows":[0,16],"runs":2}],"#,
        r#""recoveries":[{"step":"repacked","op":"matmul","format":"f","kernel":"a","id":"01","reason":"r","then":"b","#,
        r#""attempt":1,"success":true,"us":12}],"more_recoveries":0}"#
    );
    let receipt = same(json);
    assert_eq!((receipt.parts[0].rows, receipt.recoveries[0].us), ([0, 16], Some(12)));
    let missing = json.replace("\"launches\":3,", "");
    let why = gristmill_records::read::<Receipt>(serde_json::from_str(&missing).expect("JSON"))
        .expect_err("a kernel");
    assert!(why.contains("`kernels[0]") && why.contains("missing field `launches`"), "{why}");
}
