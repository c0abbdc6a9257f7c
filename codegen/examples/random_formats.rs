//! Writes random formats into a folder: `random_formats SEED COUNT FOLDER`. `tests/random_formats/run` builds what is
//! written here and compares its kernels with the decoder that knows where each bit was placed.

#[path = "../../tests/random_formats/drawn/mod.rs"]
mod drawn;
#[path = "../../oracle/src/random.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod random;

use drawn::Drawn;
use gristmill_spec::{SourceFile, check, shipped};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seed, count, folder] = &arguments[..] else {
        return Err("random_formats SEED COUNT FOLDER".into());
    };
    let (seed, count): (u64, usize) = (seed.parse()?, count.parse()?);
    let folder = Path::new(folder);
    let folders = ["/packings/", "/activations/", "/kernels/"];
    let mut around = shipped()?;
    around.retain(|source| folders.iter().any(|folder| source.path.contains(folder)));
    let (mut written, mut index) = (0, 0);
    // Those that the checker refuses have no kernels to try; that they are refused rightly is tested elsewhere.
    while written < count {
        let drawn = Drawn::new(seed, index);
        index += 1;
        let files = drawn.files();
        let source = |(path, bytes): &(String, Vec<u8>)| SourceFile {
            path: format!("random/{path}"),
            bytes: bytes.clone(),
        };
        let sources: Vec<SourceFile> = around.iter().cloned().chain(files.iter().map(source)).collect();
        if check(&sources).set.is_none() {
            println!("{}: refused by the checker ({})", drawn.name, drawn.doubt.unwrap_or("a right format"));
            continue;
        }
        for (path, bytes) in files {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            std::fs::write(path, bytes)?;
        }
        written += 1;
    }
    println!("seed {seed}: {written} formats in {}", folder.display());
    Ok(())
}
