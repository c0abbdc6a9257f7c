//! TL1 and TL2 tensors of GGUF files, read as ternary formats.
#![cfg(feature = "bitnet")]

use crate::vectors::{Vector, of};
use gristmill::gguf::{GgufWriter, LayerOptions, Model, ModelError, TensorType, TypeNumbers, Value};
use gristmill::import::{ImportError, TileSizes, Tiled, Tiles};
use gristmill::{Dequantizer, Executor, Experts, LinearOptions, QuantizedMatrix, REGISTRY, Request, Threads};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A tensor of the converters' golden vectors.
struct Case {
    number: u32,
    n: usize,
    k: usize,
    tiles: Tiles,
    data: Vec<u8>,
    weights: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let of = |(format, number)| of(format).into_iter().map(move |entry| (entry, number));
    let case = |(entry, number): (Vector, u32)| Case {
        number,
        n: entry.number("rows"),
        k: entry.number("row_len"),
        tiles: Tiles { bm: entry.number("BM"), bk: entry.number("BK"), bmm: entry.number("bm") },
        data: entry.bytes("q").expect("q"),
        weights: entry.floats("y").expect("y"),
    };
    let cases: Vec<Case> = [("TL1", 38), ("TL2", 39)].into_iter().flat_map(of).map(case).collect();
    assert_eq!(cases.len(), 6);
    cases
}

/// A file of one tensor, as bitnet.cpp numbers types.
fn write(path: &Path, case: &Case, data: &[u8]) -> Outcome {
    write_as(path, case, data, &[case.k as u64, case.n as u64])
}

fn write_as(path: &Path, case: &Case, data: &[u8], dims: &[u64]) -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("bitnet-b1.58"))?;
    writer.metadata("general.file_type", Value::U32(case.number))?;
    writer.tensor("w", dims, case.number, data.len() as u64)?;
    let mut stream = writer.write_to(Vec::new())?;
    stream.data("w", data)?;
    std::fs::write(path, stream.finish()?)?;
    Ok(())
}

fn values(matrix: &QuantizedMatrix<'_>) -> Result<Vec<f32>, gristmill::Error> {
    let prepared = REGISTRY.prepare(&Request::dequantize(matrix.format().name, matrix.n(), matrix.k()))?;
    let mut values = vec![f32::NAN; matrix.n() * matrix.k()];
    Dequantizer::new(&prepared.decide_as_asked())?.run(matrix, &mut values)?;
    Ok(values)
}

fn with(tiles: TileSizes) -> TypeNumbers {
    TypeNumbers::new(&REGISTRY).with_tiles(tiles)
}

#[test]
fn tensors_are_read_as_ternary_formats_exactly() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    let threads = Threads::single();
    let mut read = Vec::new();
    for case in cases() {
        let Case { n, k, tiles, .. } = case;
        // As it is, and with a scale far below the threshold of a quantizer.
        let scale_at = case.data.len() - 32;
        let scale = f32::from_le_bytes(case.data[scale_at..][..4].try_into()?);
        for new in [scale, 1.5e-9, -0.25] {
            let mut data = case.data.clone();
            data[scale_at..][..4].copy_from_slice(&new.to_le_bytes());
            write(&path, &case, &data)?;
            let model = Model::open_with(&path, with(TileSizes::new().with(None, tiles)))?;
            let matrix = match model.matrix("w") {
                Ok(matrix) => matrix,
                Err(ModelError::Import { why: ImportError::NoFormat { k: found, .. }, .. }) => {
                    assert_eq!((found, !k.is_multiple_of(64)), (k, true));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let expected: Vec<f32> = case.weights.iter().map(|weight| weight / scale * new).collect();
            assert_eq!(values(&matrix.matrix())?, expected, "{n}x{k}");
            let some = model.matrix_rows("w", 3..7)?;
            assert_eq!(values(&some.matrix())?, expected[3 * k..7 * k]);
            let layer = model.linear("w", &LayerOptions::new(&threads))?;
            assert_eq!((layer.n(), layer.k()), (n, k));
            // Any number of threads reads the same bytes.
            let tensor = model.file().tensor("w").ok_or("no tensor")?;
            let TensorType::Tiled(tiled) = model.tensor_type("w")? else { return Err("not tiled".into()) };
            for count in [2, 5] {
                let threads = Threads::new(count)?.with_grain(1);
                let again = model.types().import_on(&tensor, tiled.layout, &threads)?;
                assert_eq!(again.matrix().data(), matrix.matrix().data(), "{count} threads");
            }
            read.push(matrix.format().name);
        }
    }
    // Five of six; the sixth has rows of 288, which no ternary format with an f32 scale takes.
    assert_eq!(read.len(), 15);
    assert!(read.contains(&"i2_s") && read.contains(&"iq2_bn"), "{read:?}");
    Ok(())
}

/// Threads of the program that count jobs.
struct Counted(Arc<AtomicUsize>);

impl Executor for Counted {
    fn count(&self) -> usize {
        2
    }

    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        (0..parts).for_each(part);
    }
}

/// A stack is converted once, however many experts it holds.
#[test]
fn experts_share_one_conversion() -> Outcome {
    const EXPERTS: usize = 8;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    let case = cases().into_iter().find(|case| case.k == 128).ok_or("one of them")?;
    let rows = case.n / EXPERTS;
    write_as(&path, &case, &case.data, &[case.k as u64, rows as u64, EXPERTS as u64])?;
    let model = Model::open_with(&path, with(TileSizes::new().with(None, case.tiles)))?;

    let jobs = Arc::new(AtomicUsize::new(0));
    let threads = Threads::lent(Counted(Arc::clone(&jobs)))?.with_grain(1);
    let asked = || jobs.swap(0, Ordering::Relaxed);
    let tensor = model.file().tensor("w").ok_or("no tensor")?;
    let TensorType::Tiled(tiled) = model.tensor_type("w")? else { return Err("not tiled".into()) };
    let whole = model.types().import_on(&tensor, tiled.layout, &threads)?;
    let of_import = asked();
    assert!(of_import > 0);
    let parts = (0..EXPERTS).map(|expert| model.matrix_rows("w", expert * rows..(expert + 1) * rows));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let all = parts.iter().flat_map(|part| values(&part.matrix()).expect("its values"));
    assert_eq!(all.collect::<Vec<f32>>(), values(&whole.matrix())?);
    let matrices: Vec<QuantizedMatrix<'_>> = parts.iter().map(|part| part.matrix()).collect();
    asked();
    let working_set = Some(model.file().working_set());
    let linear = LinearOptions { working_set, ..LinearOptions::default() };
    let expected = Experts::new(&REGISTRY, &matrices, &linear, &threads)?;
    let of_experts = asked();

    let experts = model.experts(&["w"], &LayerOptions::new(&threads))?;
    assert_eq!(asked(), of_import + of_experts);
    assert_eq!(
        (experts.count(), experts.n(), experts.weight_bytes()),
        (EXPERTS, rows, expected.weight_bytes())
    );
    Ok(())
}

#[test]
fn tile_sizes_come_from_the_caller() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("m.gguf");
    let case = cases().into_iter().find(|case| case.k == 128).ok_or("one of them")?;
    write(&path, &case, &case.data)?;
    let Case { n, k, tiles: Tiles { bm, bk, bmm }, .. } = case;
    let config = format!("[Kernels_0]\nm = {n}\nk = {k}\nbm = {bm}\nbk = {bk}\nbmm = {bmm}\n");
    let model = Model::open_with(&path, with(TileSizes::new().with_config(&config)?))?;
    assert_eq!(values(&model.matrix("w")?.matrix())?, case.weights);
    #[cfg(feature = "json")]
    {
        let plan = |types| -> Result<_, Box<dyn std::error::Error>> {
            Ok(gristmill::json::plan(&Model::open_with(&path, types)?, gristmill::Device::CPU, 1)?)
        };
        let [known, unknown] = [plan(model.types().clone())?, plan(with(TileSizes::new()))?];
        assert!(known[0].kernel.as_ref().is_some_and(|name| name.starts_with("matmul.i2_s.")), "{known:?}");
        assert!(unknown[0].reason.as_ref().is_some_and(|why| why.contains("tile sizes")), "{unknown:?}");
    }
    let why = |tiles: TileSizes| match Model::open_with(&path, with(tiles))
        .map(|model| model.matrix("w").map(|_| ()))
    {
        Ok(Err(ModelError::Import { tensor, why })) if tensor == "w" => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(TileSizes::new()), ImportError::NoTileSizes { n, k });
    let other = TileSizes::new().with_config(&config.replace("k = 128", "k = 256"))?;
    assert!(matches!(why(other.clone()), ImportError::NoTiles { .. }));
    // What is named counts before a configuration, and for a shape before what is named for all.
    let wrong = Tiles { bm: n + 1, bk, bmm };
    assert!(matches!(why(other.with(None, wrong)), ImportError::Tiles { what: "bm", .. }));
    let named = TileSizes::new().with(None, wrong).with(Some((n, k)), case.tiles);
    assert_eq!(named.of(n, k), Ok(case.tiles));
    assert!(TileSizes::new().with_config("[a]\nbm = x\n").is_err());
    Ok(())
}

/// What is known of tile sizes before a tensor is read is what reading it finds.
#[test]
fn tile_sizes_that_pass_the_check_are_those_that_can_be_read() {
    let sizes = [0, 1, 8, 16, 24, 32, 48, 64, 72, 96, 128, 192, 256, 264, 288, 320, 384, 480, usize::MAX];
    let (mut taken, mut refused) = (0, 0);
    for layout in Tiled::ALL {
        for (n, k) in [(32, 64), (32, 264), (32, 288), (64, 256), (64, 384), (96, 320), (128, 416)] {
            let Some(bytes) = layout.tensor_bytes(n as u64, k as u64) else { continue };
            // Codes of 0 stand for weights in both layouts, and so does a scale of 0.
            let data = vec![0; bytes as usize];
            for (bm, bk) in sizes.iter().flat_map(|bm| sizes.iter().map(move |bk| (*bm, *bk))) {
                for bmm in [0, 16, 32, 48, 64, 128] {
                    let tiles = Tiles { bm, bk, bmm };
                    let (checked, read) = (layout.check(n, k, tiles), layout.read(&data, n, k, tiles));
                    assert_eq!(checked, read.map(|_| ()), "{} {n}x{k} {tiles:?}", layout.name());
                    match checked {
                        Ok(()) => taken += 1,
                        Err(_) => refused += 1,
                    }
                }
            }
        }
    }
    assert!(taken > 50 && refused > 5000, "{taken} taken, {refused} refused");
}
