//! `cuda.toml`: the architectures that CUDA kernels are compiled for.

use crate::model::CudaTargets;
use crate::toml_walk::{At, File, Span, Table};
use crate::vocab::CudaArch;
use toml::de::DeTable;

/// Reads the file; `None` after its mistakes are reported.
pub(crate) fn parse(file: &File<'_>, table: &DeTable<'_>) -> Option<CudaTargets> {
    let table = Table::open(file, "CUDA targets", table, Span::default(), &["architectures", "ptx"]);
    let mut architectures = table.need("architectures")?.list(|node| architecture(file, &node.string()?))?;
    let mut ptx = match table.get("ptx") {
        None => Vec::new(),
        Some(node) => {
            let each: Option<Vec<_>> = node.strings()?.iter().map(|text| architecture(file, text)).collect();
            each?
        }
    };
    if let Some(specific) = ptx.iter().find(|arch| arch.specific) {
        let node = table.get("ptx")?;
        let message = format!("PTX for {specific} runs on no other device");
        let error = file.error("out-of-range", node.span, message);
        file.report(
            error.help("name an architecture without `a`: newer devices compile its PTX for themselves"),
        );
        return None;
    }
    architectures.sort_unstable();
    architectures.dedup();
    ptx.sort_unstable();
    ptx.dedup();
    Some(CudaTargets { architectures, ptx })
}

fn architecture(file: &File<'_>, text: &At<String>) -> Option<CudaArch> {
    let arch = CudaArch::from_name(&text.value);
    if arch.is_none() {
        let message = format!("`{}` is no CUDA architecture", text.value.escape_debug());
        let error = file.error("out-of-range", text.span, message);
        file.report(error.help("write it like \"80\" or \"90a\": the compute capability without its point"));
    }
    arch
}
