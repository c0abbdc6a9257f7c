//! Writes the CUDA units of the shipped specs into a folder: `cargo run -p gristmill-codegen --example cuda_units DIR`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("name a folder")?;
    let sources = gristmill_spec::shipped()?;
    let report = gristmill_spec::check(&sources);
    let set = report.set.ok_or_else(|| gristmill_spec::render(&sources, &report.diagnostics, false))?;
    std::fs::create_dir_all(&dir)?;
    match gristmill_codegen::cuda::emit(&set) {
        Ok(emitted) => {
            for unit in &emitted.units {
                std::fs::write(format!("{dir}/{}.cu", unit.name), &unit.text)?;
            }
            println!("{} units, {} kernels", emitted.units.len(), emitted.listed.len());
        }
        Err(errors) => {
            for error in errors {
                eprintln!("{error}");
            }
        }
    }
    Ok(())
}
